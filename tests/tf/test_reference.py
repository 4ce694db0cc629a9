"""The reference page tells every face of TensorFlow, every argument of theirs, and no other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import checkmate_tf

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tensorflow.md"
FACES = ["compile", "enable", "function", "plan", "trace"]
GIVEN = {"fn", "model", "loss", "optimizer", "input_spec", "label_spec"}
"""Arguments that the first table tells, in the calls."""


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_public_name_is_told(page: str) -> None:
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page))))
    assert [name for name in checkmate_tf.__all__ if name not in told] == []


def test_every_argument_is_told_for_the_faces_that_have_it(page: str) -> None:
    table = page.split("## Arguments")[1].split("\n## ")[0]
    told: dict[str, set[str]] = {}
    for name, of in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", table, re.MULTILINE):
        named = set(re.findall(r"`(\w+)`", of))
        told[name] = set(FACES) - named if of.startswith("all but") else named or set(FACES)
    taken: dict[str, set[str]] = {}
    for face in FACES:
        for name in inspect.signature(getattr(checkmate_tf, face)).parameters:
            if name not in GIVEN:
                taken.setdefault(name, set()).add(face)
    assert told == taken

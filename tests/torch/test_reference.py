"""The reference page tells every face of PyTorch, every argument of theirs, and no other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import checkmate_torch

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pytorch.md"
FACES = ["compile", "compile_step", "max_batch_size", "plan", "trace"]
GIVEN = {"model", "example_inputs", "make_inputs", "loss_fn", "max_overhead"}
"""Arguments that the first table tells, in the calls."""


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_public_name_is_told(page: str) -> None:
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page))))
    assert [name for name in checkmate_torch.__all__ if name not in told] == []


def test_every_argument_is_told_for_the_faces_that_have_it(page: str) -> None:
    table = page.split("## Arguments")[1].split("\n## ")[0]
    told: dict[str, set[str]] = {}
    for name, of in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", table, re.MULTILINE):
        named = set(re.findall(r"`(\w+)`", of))
        told[name] = set(FACES) - named if of.startswith("all but") else named or set(FACES)
    taken: dict[str, set[str]] = {}
    for face in FACES:
        for name in inspect.signature(getattr(checkmate_torch, face)).parameters:
            if name not in GIVEN:
                taken.setdefault(name, set()).add(face)
    assert told == taken

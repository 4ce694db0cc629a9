"""The reference page lists all solvers, and the settings of this distribution with their defaults."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from pathlib import Path

import pytest

from checkmate.builtin import checkmate_register_solvers as built_in
from checkmate.plugins import SolverSpec
from checkmate_solvers.plugin import checkmate_register_solvers as ours

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "solvers.md").read_text(encoding="utf-8")
SECTIONS = dict(zip(*(iter(re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)[1:]),) * 2, strict=True))
OURS = SECTIONS["In `checkmate-solvers`"]


def named(section: str) -> list[str]:
    """The first column of its tables."""
    return re.findall(r"^\| `([\w-]+)` \|", section, flags=re.MULTILINE)


def test_every_solver_is_listed_and_no_other() -> None:
    assert sorted(named(SECTIONS["In `checkmate-core`"])) == sorted(spec.name for spec in built_in())
    assert sorted(set(named(OURS))) == sorted(spec.name for spec in ours())


@pytest.mark.parametrize("spec", ours(), ids=lambda spec: spec.name)
def test_guarantee_and_settings_are_listed(spec: SolverSpec) -> None:
    guarantee, settings = re.findall(rf"^\| `{spec.name}` \|(.*)\|$", OURS, flags=re.MULTILINE)
    assert f"| {spec.guarantee} |" in guarantee
    if any("ortools" in distribution for distribution in spec.requires):
        pytest.importorskip("ortools")
    solver = spec.load()
    assert dataclasses.is_dataclass(solver)
    module, name = settings.split("|")[0].strip(" `").rsplit(".", maxsplit=1)
    assert getattr(import_module(f"checkmate_solvers.{module}"), name) is type(solver)
    fields = {field.name: field.default for field in dataclasses.fields(solver)}
    assert set(re.findall(r"`(\w+)`", settings.split("|")[1])) == set(fields)
    for field, default in fields.items():
        if isinstance(default, int) and not isinstance(default, bool):
            assert f"`{field}` ({default})" in settings

"""``checkmate trace``: what a frontend makes of a program, as a file; what can't is one clear line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from checkmate import read_graph

Checkmate = Callable[..., Result]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module beside us."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "layers.py").write_text(
        "class Deep:\n    factory = staticmethod(lambda: (print('noise'), 5)[1])\n\nthree = lambda: 3\n"
    )
    (tmp_path / "needy.py").write_text("import a_module_that_is_not_there\n")
    yield tmp_path
    for name in ("layers", "needy"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("program", "traces_torch")
def test_the_graph_is_written_and_shown(checkmate: Checkmate, tmp_path: Path) -> None:
    result = checkmate("trace", "--torch", "layers:Deep.factory", "-o", "g.msgpack", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert read_graph(tmp_path / "g.msgpack").n_ops == facts["graph"]["ops"] == 5
    shown = checkmate("trace", "--torch", "layers:three", "-o", "g.json", "--cost-model", "apples")
    assert "always resident" in shown.stdout
    assert read_graph(tmp_path / "g.json").cost_unit == "apples"


@pytest.mark.usefixtures("program", "traces_torch")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers", "is no MODULE:FACTORY"),
        ("absent:factory", "there is no module 'absent'"),
        ("needy:factory", "'needy' needs 'a_module_that_is_not_there'"),
        ("layers:two", "module 'layers' has no 'two'"),
    ],
)
def test_what_is_not_there_is_one_line(checkmate: Checkmate, tmp_path: Path, text: str, message: str) -> None:
    result = checkmate("trace", "--torch", text, "-o", "g.json")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "g.json").exists()


def test_without_a_frontend_or_a_program_it_says_what_to_do(
    checkmate: Checkmate, request: pytest.FixtureRequest
) -> None:
    result = checkmate("trace", "-o", "g.json")
    assert (result.exit_code, "pip install checkmate-torch" in result.stderr) == (2, True)
    request.getfixturevalue("traces_torch")
    result = checkmate("trace", "-o", "g.json")
    assert (result.exit_code, "--torch MODULE:FACTORY" in result.stderr) == (2, True)
    assert "counts layers" in checkmate("trace", "--help").stdout

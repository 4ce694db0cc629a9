"""``checkmate trace``: the graph of a program, as a file; each failure is one clear line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from rich.console import Console

from checkmate import DFGraph, Progress, read_graph
from checkmate.cli.progress import steps
from checkmate.errors import install_hint
from checkmate.plugins import FrontendSpec, hookimpl

Checkmate = Callable[..., Result]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "layers.py").write_text(
        "class Deep:\n    factory = staticmethod(lambda: (print('noise'), 5)[1])\n\nthree = lambda: 3\n"
    )
    (tmp_path / "needy.py").write_text("import a_module_that_is_not_there\n")
    yield tmp_path
    for name in ("layers", "needy"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("program", "layers")
def test_the_graph_is_written_and_shown(checkmate: Checkmate, tmp_path: Path) -> None:
    result = checkmate("trace", "--torch", "layers:Deep.factory", "-o", "g.msgpack", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert read_graph(tmp_path / "g.msgpack").n_ops == facts["graph"]["ops"] == 5
    shown = checkmate("trace", "--torch", "layers:three", "-o", "g.json", "--cost-model", "apples")
    assert "always resident" in shown.stdout
    assert read_graph(tmp_path / "g.json").cost_unit == "apples"


@pytest.mark.usefixtures("program", "layers")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers", "is not of the form MODULE:FACTORY"),
        ("absent:factory", "there is no module 'absent'"),
        ("needy:factory", "'needy' needs 'a_module_that_is_not_there'"),
        ("layers:two", "module 'layers' has no 'two'"),
    ],
)
def test_a_missing_program_is_one_line(checkmate: Checkmate, tmp_path: Path, text: str, message: str) -> None:
    result = checkmate("trace", "--torch", text, "-o", "g.json")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "g.json").exists()


@pytest.mark.usefixtures("program")
def test_progress_of_a_frontend_is_shown(
    checkmate: Checkmate, plug: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Progress] = []

    @contextmanager
    def shown(what: str) -> Iterator[Callable[[Progress], None]]:
        yield reports.append

    class Reporting:
        def trace(self, program: object, /, on_progress: Callable[[Progress], None]) -> SimpleNamespace:
            on_progress(Progress(None, 0.0, 0.0, "timing op 1 of 2"))
            return SimpleNamespace(graph=DFGraph.from_nodes(cost=[1], size=[4], deps=[[]]))

    class ReportingPlugin:
        @staticmethod
        @hookimpl
        def checkmate_register_frontends() -> list[FrontendSpec]:
            return [FrontendSpec(name="reports", summary="reports", load=Reporting)]

    monkeypatch.setattr("checkmate.cli.commands.trace.steps", shown)
    plug(("reporting", lambda: ReportingPlugin))
    assert checkmate("trace", "--reports", "layers:three", "-o", "g.json").exit_code == 0
    assert [report.step for report in reports] == ["timing op 1 of 2"]


def test_progress_is_shown_on_a_terminal() -> None:
    screen = io.StringIO()
    with steps("tracing", Console(file=screen, force_terminal=True, width=100, color_system=None)) as tell:
        tell(Progress(None, 0.0, 0.0, "timing op 1 of 2"))
    assert "tracing timing op 1 of 2" in screen.getvalue()


def test_without_a_frontend_or_a_program_the_error_gives_advice(
    checkmate: Checkmate, request: pytest.FixtureRequest
) -> None:
    result = checkmate("trace", "-o", "g.json")
    assert (result.exit_code, install_hint("checkmate-torch") in result.stderr) == (2, True)
    request.getfixturevalue("layers")
    result = checkmate("trace", "-o", "g.json")
    assert (result.exit_code, "--torch MODULE:FACTORY" in result.stderr) == (2, True)
    assert "counts layers" in checkmate("trace", "--help").stdout

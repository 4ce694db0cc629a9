"""``checkmate show``: facts and pictures of graphs and schedules, in the terminal, as JSON, as files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from checkmate import (
    Compute,
    DFGraph,
    Free,
    Schedule,
    Timeline,
    read_schedule,
    simulate,
    solve,
    write_graph,
    write_schedule,
)
from checkmate.plugins import ExporterSpec, hookimpl

Checkmate = Callable[..., Result]


def test_a_graph_by_itself(checkmate: Checkmate, graph: Path, chain: DFGraph) -> None:
    shown = checkmate("show", graph)
    assert (shown.exit_code, shown.stderr) == (0, "")
    for text in ("8: 4 forward, 4 backward", "40 B without recomputation", "24 B (60.0%)", "▼", "f forward"):
        assert text in shown.stdout
    facts = json.loads(checkmate("show", graph, "--json").stdout)["graph"]
    assert facts == {
        "name": "chain",
        "digest": chain.digest,
        "ops": 8,
        "forward_ops": 4,
        "backward_ops": 4,
        "once_only_ops": 0,
        "tensors": 8,
        "tensor_bytes": 64,
        "base_bytes": 0,
        "ideal_cost": 8.0,
        "cost_unit": "s",
        "keep_all_peak": 40,
        "floor": 24,
        "floor_op": {"op": 5, "name": "5"},
        "minimum": 24,
        "largest": [{"tensor": t, "name": str(t), "size": 8} for t in range(5)],
    }


def test_a_schedule_on_it(checkmate: Checkmate, graph: Path, schedule: Path, chain: DFGraph) -> None:
    shown = checkmate("show", graph, schedule)
    assert (shown.exit_code, shown.stderr) == (0, "")
    for text in ("peak 32 B at step", "budget 32 B: kept", "1 recomputations", "bytes saved", "r recomputed"):
        assert text in shown.stdout
    facts = json.loads(checkmate("show", graph, schedule, "--json").stdout)
    timeline = simulate(chain, read_schedule(schedule, chain))
    assert facts["graph"] is None
    facts = facts["timeline"]
    assert facts["memory"] == [
        m for m, c in zip(timeline.memory, timeline.schedule.codes, strict=True) if c >= 0
    ]
    assert facts["phases"].count("r") == facts["recomputes"] == 1
    assert len(facts["phases"]) == 9
    assert (facts["peak"], facts["budget"], facts["cost"]) == (32, 32, 9.0)
    assert facts["memory"][facts["peak_run"]] == timeline.memory[facts["peak_step"]] == 32
    assert sum(row["size"] for row in facts["held_at_peak"]) == 32
    assert [row["again"] for row in facts["recomputed"]] == [1]


@pytest.mark.parametrize(("budget", "verdict"), [("16B", "16 B: exceeded"), ("100%", "40 B: kept")])
def test_a_budget_of_ones_own(
    checkmate: Checkmate, graph: Path, schedule: Path, budget: str, verdict: str
) -> None:
    assert f"budget {verdict}" in checkmate("show", graph, schedule, "--budget", budget).stdout


@pytest.mark.parametrize("hint", [None, "32", -1, 0, 1.5, 2**63, True, {}])
def test_a_hint_that_is_no_budget_is_not_drawn(
    checkmate: Checkmate, graph: Path, chain: DFGraph, tmp_path: Path, hint: object
) -> None:
    path = tmp_path / "s.json"
    write_schedule(path, Schedule.from_sequence(chain, range(8)), chain, {"budget": hint})
    shown = checkmate("show", graph, path)
    assert shown.exit_code == 0
    assert "budget" not in shown.stdout


def test_the_picture_is_as_wide_as_the_terminal(
    checkmate: Checkmate, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (40, 60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = checkmate("show", graph).stdout.splitlines()
        assert max(len(line) for line in shown if "▼" in line or "┤" in line) <= columns


def test_names_can_not_play_with_the_terminal(checkmate: Checkmate, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    wild = "\x1b[31m\n[red]:smile:\u202e"
    write_graph(path, DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], names=[wild], name=wild))
    shown = checkmate("show", path).stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[31m\\n[red]:smile:\\u202e" in shown


def test_an_empty_graph(checkmate: Checkmate, tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    write_graph(path, DFGraph(ops=(), tensors=(), fixed_size=3))
    shown = checkmate("show", path)
    assert shown.exit_code == 0
    assert "peak 3 B" in shown.stdout
    facts = json.loads(checkmate("show", path, "--json").stdout)
    assert (facts["graph"]["floor"], facts["graph"]["floor_op"]) == (3, None)
    assert (facts["timeline"]["peak_run"], facts["timeline"]["peak_op"]) == (-1, None)


def test_long_lists_end_with_how_many_more(checkmate: Checkmate, tmp_path: Path) -> None:
    """Ten ops that one last op reads, each of them computed twice."""
    graph, path = tmp_path / "graph.json", tmp_path / "s.json"
    fan = DFGraph.from_nodes(cost=[1] * 11, size=[8] * 11, deps=[[]] * 10 + [range(10)], cost_unit="s")
    write_graph(graph, fan)
    write_schedule(path, Schedule.from_sequence(fan, [*range(10), *range(10), 10]), fan)
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in checkmate("show", graph, path).stdout.splitlines()
        if " more " in line
    ]
    assert rows == [["6 more", "", "48 B"], ["… and 5 more", "", "", "5 s", ""]]


def test_an_invalid_schedule_is_exit_1(
    checkmate: Checkmate, graph: Path, chain: DFGraph, tmp_path: Path
) -> None:
    path = tmp_path / "s.json"
    write_schedule(path, Schedule.of([Compute(0), Free(0)]), chain)
    shown = checkmate("show", graph, path)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.startswith("Not valid: step 2")


def test_a_least_budget_that_was_not_found_is_not_claimed(
    checkmate: Checkmate, graph: Path, chain: DFGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "at most 24 B (60.0%): known to work" in checkmate("show", graph).stdout
    nothing = solve(chain, 40, solver="keep-all")
    monkeypatch.setattr("checkmate.solving.api.minimum_budget", lambda *_, **__: nothing)
    assert "none below the peak found within 2 s" in checkmate("show", graph).stdout


class Writer:
    """An exporter that ignores the budget."""

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        file.write_text(f"peak {timeline.peak}")


class BudgetWriter:
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        file.write_text(f"peak {timeline.peak} of {budget}")


class Exporters:
    @staticmethod
    @hookimpl
    def checkmate_register_exporters() -> list[ExporterSpec]:
        return [
            ExporterSpec(name="plain", summary="peak", suffix=".txt", load=Writer),
            ExporterSpec(name="more", summary="peak, budget", suffix=".more.txt", load=BudgetWriter),
        ]


@pytest.fixture
def exporters(plug: Callable[..., None]) -> None:
    plug(("exporters", lambda: Exporters))


@pytest.mark.usefixtures("exporters")
@pytest.mark.parametrize(
    ("name", "flags", "content"),
    [
        ("out.txt", [], "peak 32"),
        ("out.more.txt", [], "peak 32 of 32"),
        ("out.more.txt", ["--format", "plain"], "peak 32"),
        ("out", ["--format", "more", "--budget", "36B"], "peak 32 of 36"),
    ],
)
def test_files_are_written_by_the_exporter_of_their_suffix(
    checkmate: Checkmate,
    graph: Path,
    schedule: Path,
    tmp_path: Path,
    name: str,
    flags: list[str],
    content: str,
) -> None:
    out = tmp_path / name
    shown = checkmate("show", graph, schedule, "-o", out, *flags)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert str(out) in shown.stderr
    assert out.read_text() == content


@pytest.mark.usefixtures("exporters")
def test_a_file_and_json_at_once(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    shown = checkmate("show", graph, "-o", tmp_path / "x.txt", "--json")
    assert json.loads(shown.stdout)["timeline"]["peak"] == 40
    assert (tmp_path / "x.txt").read_text() == "peak 40"


@pytest.mark.parametrize("name", ["out.html", "out.perfetto.json", "out.dot", "out.svg", "out.png"])
def test_the_exporters_of_core(
    checkmate: Checkmate, graph: Path, schedule: Path, tmp_path: Path, name: str
) -> None:
    if name.endswith((".svg", ".png")):
        pytest.importorskip("matplotlib")
    shown = checkmate("show", graph, schedule, "-o", tmp_path / name)
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--budget", "8Q"], "can't read '8Q'"),
        (["-o", "x.unknown"], "no exporter for 'x.unknown'"),
        (["-o", "x.html", "--format", "nonsense"], "no exporter 'nonsense'"),
        (["--format", "html"], "say where to write"),
        (["-o", "/nonexistent/x.html"], "there is no folder"),
    ],
)
def test_bad_arguments_are_exit_2(
    checkmate: Checkmate, graph: Path, arguments: list[str], complaint: str
) -> None:
    shown = checkmate("show", graph, *arguments)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert complaint in shown.stderr


def test_inputs_are_not_overwritten(checkmate: Checkmate, graph: Path, schedule: Path) -> None:
    before = graph.read_bytes(), schedule.read_bytes()
    for file, what in ((graph, "graph"), (schedule, "schedule")):
        shown = checkmate("show", graph, schedule, "-o", file, "--format", "html")
        assert shown.exit_code == 2
        assert f"is the {what} itself" in shown.stderr
    assert (graph.read_bytes(), schedule.read_bytes()) == before


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no such file")
def test_a_report_can_go_to_standard_output(graph: Path) -> None:
    code = "from checkmate.cli import main; main()"
    command = [sys.executable, "-c", code, "show", str(graph), "-o", "/dev/stdout", "--format", "html"]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")


class _Writes:
    """An exporter that calls ``act``."""

    def __init__(self, act: Callable[[Timeline, Path], object]) -> None:
        self.act = act

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        self.act(timeline, file)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            lambda timeline, _: setattr(timeline, "peak", 0),
            "failed: FrozenInstanceError: cannot assign to field",
        ),
        (
            lambda timeline, _: timeline.memory.fill(0),
            "failed: ValueError: assignment destination is read-only",
        ),
        (lambda _, file: (file.write_text("part"), sys.exit(3)), "failed: SystemExit: 3"),
        (lambda *_: None, "wrote no file"),
        (lambda _, file: file.mkdir(), "wrote no file"),
    ],
    ids=["frozen", "read-only", "exit", "nothing", "folder"],
)
def test_an_exporter_that_fails_is_named_and_the_old_file_stays(
    checkmate: Checkmate,
    graph: Path,
    tmp_path: Path,
    plug: Callable[..., None],
    act: Callable[[Timeline, Path], object],
    said: str,
) -> None:
    class Plugin:
        @staticmethod
        @hookimpl
        def checkmate_register_exporters() -> list[ExporterSpec]:
            return [ExporterSpec(name="evil", summary="writes", suffix=".evil", load=lambda: _Writes(act))]

    plug(("bad", lambda: Plugin))
    (tmp_path / "x.evil").write_text("old")
    before = sorted(tmp_path.iterdir())
    result = checkmate("show", graph, "-o", tmp_path / "x.evil", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: exporter 'evil' of 'bad' (bad 1.0) {said}")
    assert ((tmp_path / "x.evil").read_text(), sorted(tmp_path.iterdir())) == ("old", before)

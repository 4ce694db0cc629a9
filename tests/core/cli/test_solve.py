"""``checkmate solve``: a schedule on disk that the judge accepts, JSON, exit codes, progress."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from checkmate import DFGraph, Progress, read_graph, read_schedule, simulate, write_graph
from checkmate.cli.exits import Interrupted
from checkmate.cli.progress import report_text, watching
from checkmate.solving import api

Checkmate = Callable[..., Result]


@pytest.mark.parametrize("name", ["schedule.json", "schedule.msgpack"])
def test_solve_writes_json_and_a_schedule_that_simulate_accepts(
    checkmate: Checkmate, chain: DFGraph, graph: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    solved = checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "-o", out, "--json")
    assert solved.exit_code == 0
    facts = json.loads(solved.stdout)
    timeline = simulate(chain, read_schedule(out, read_graph(graph)))
    expected = {"status": "feasible", "solver": "heuristics", "budget": 32, "ideal_cost": 8.0}
    assert expected.items() <= facts.items()
    judged = {"peak": timeline.peak, "cost": timeline.cost, "overhead": timeline.overhead}
    assert judged.items() <= facts.items()
    assert facts["gap"] == pytest.approx((facts["cost"] - facts["bound"]) / facts["cost"])
    assert facts["seconds"] >= 0

    told = checkmate("simulate", graph, out, "--json")
    assert told.exit_code == 0
    assert json.loads(told.stdout) == {
        "valid": True,
        "reason": None,
        **judged,
        "steps": len(timeline.schedule),
    }


def test_the_file_says_how_it_was_made(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    solved = checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "-o", out, "--json")
    facts = json.loads(solved.stdout)
    meta = json.loads(out.read_text())["meta"]
    assert meta == {k: facts[k] for k in ("solver", "budget", "peak", "cost", "bound", "status")}


def test_a_table_for_people(checkmate: Checkmate, graph: Path) -> None:
    solved = checkmate("solve", graph, "--budget", "32B", "--solver", "evict-belady")
    assert solved.exit_code == 0
    for text in ("chain", "feasible", "32 B of 32 B (100.0%)", "overhead", "times"):
        assert text in solved.stdout


def test_no_progress_is_shown_without_a_terminal(checkmate: Checkmate, graph: Path) -> None:
    assert checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "--json").stderr == ""


def test_a_share_is_a_percentage_or_a_number_with_a_point(checkmate: Checkmate, graph: Path) -> None:
    budgets = [
        json.loads(checkmate("solve", graph, "--budget", text, "--solver", "heuristics", "--json").stdout)[
            "budget"
        ]
        for text in ("80%", "0.8", "32", "32B")
    ]
    assert budgets == [32] * 4


def test_auto_without_solvers_answers(checkmate: Checkmate, graph: Path) -> None:
    solved = checkmate("solve", graph, "--budget", "100%", "--json")
    assert json.loads(solved.stdout)["solver"] == "heuristics"


def test_infeasible_is_exit_1_with_advice_and_json(checkmate: Checkmate, graph: Path) -> None:
    result = checkmate("solve", graph, "--budget", "23", "--json", "--solver", "heuristics")
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert (facts["status"], facts["cost"], facts["peak"], facts["gap"]) == ("infeasible", None, None, None)
    assert "the least budget known to work is 24 bytes" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_none_found_is_exit_1_and_no_proof(checkmate: Checkmate, graph: Path) -> None:
    result = checkmate("solve", graph, "--budget", "24", "--json", "--solver", "keep-all")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (1, "unknown")
    assert "proved" not in result.stderr


def test_an_empty_graph_is_solved_by_doing_nothing(checkmate: Checkmate, tmp_path: Path) -> None:
    empty, out = tmp_path / "empty.json", tmp_path / "schedule.json"
    write_graph(empty, DFGraph(ops=(), tensors=()))
    solved = checkmate("solve", empty, "--budget", "1KiB", "--solver", "heuristics", "-o", out, "--json")
    facts = json.loads(solved.stdout)
    assert (facts["status"], facts["cost"], facts["peak"], facts["overhead"]) == ("optimal", 0.0, 0, 0.0)
    assert json.loads(out.read_text())["steps"] == []
    assert checkmate("solve", empty, "--budget", "1KiB", "--solver", "heuristics").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--budget", "0"], "must be positive"),
        (["--budget", "0%"], "must be positive"),
        (["--budget", "-1"], "can't read '-1'"),
        (["--budget", "-5"], "can't read '-5'"),
        (["--budget", "8X"], "can't read '8X'"),
        (["--budget", "8 GB of RAM"], "can't read"),
        (["--budget", "12 parsecs"], "can't read '12 parsecs'"),
        (["--budget", "nan"], "can't read"),
        (["--budget", "10**30"], "can't read '10**30'"),
        (["--budget", str(10**30)], "more than 2^63 - 1 bytes"),
        (["--budget", "1e3"], "can't read '1e3'"),
        (["--budget", "50.5"], "at most 1000%"),
        (["--budget", ""], "can't read ''"),
        (["--budget", "8GiB", "--solver", "everst"], "no solver 'everst'; installed: ['heuristics'"),
        (["--budget", "8GiB", "--time-limit", "0"], "--time-limit"),
        (["--budget", "8GiB", "--time-limit", "nan"], "--time-limit"),
        (["--budget", "8GiB", "--threads", "0"], "--threads"),
        (["--budget", "8GiB", "--seed", "-1"], "--seed"),
        (["--budget", "8GiB", "-o", "/nonexistent/x.json"], "there is no folder '/nonexistent'"),
        (["--budget", "8GiB", "-o", ""], "'.' is a folder"),
        ([], "Missing option '--budget'"),
    ],
)
def test_bad_arguments_are_exit_2(
    checkmate: Checkmate, graph: Path, arguments: list[str], complaint: str
) -> None:
    result = checkmate("solve", graph, *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["new.json", "old.json"])
def test_a_file_that_may_not_be_written_is_refused_before_the_work(
    checkmate: Checkmate, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    output = tmp_path / name
    (tmp_path / "old.json").touch()
    asked = output if output.exists() else tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (asked, os.W_OK))
    result = checkmate("solve", graph, "--budget", "80%", "--solver", "everst", "-o", output)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "may not be written" in result.stderr


def test_any_time_limit_that_is_a_number_is_fine(checkmate: Checkmate, graph: Path) -> None:
    solved = checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "--time-limit", "inf")
    assert solved.exit_code == 0


def test_the_graph_is_not_overwritten(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(graph)
    before = graph.read_bytes()
    for output in (graph, tmp_path / "link.json"):
        result = checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "-o", output)
        assert result.exit_code == 2
        assert "is the graph itself" in result.stderr
    assert graph.read_bytes() == before


def test_the_cache_is_used_only_with_its_option(
    checkmate: Checkmate, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "cache"))
    arguments = ("solve", graph, "--budget", "80%", "--solver", "heuristics", "--json")
    first = checkmate(*arguments)
    assert not (tmp_path / "cache").exists()
    assert checkmate(*arguments, "--cache").exit_code == 0
    (entry,) = (tmp_path / "cache").rglob("*.json")
    monkeypatch.setattr("checkmate.heuristics.best.BestHeuristic.solve", lambda *_: 1 / 0)
    again = json.loads(checkmate(*arguments, "--cache").stdout)
    assert again | {"seconds": 0} == json.loads(first.stdout) | {"seconds": 0}
    assert checkmate(*arguments).exit_code == 2
    entry.write_text("rubbish")
    spoilt = checkmate(*arguments, "--cache")
    assert spoilt.exit_code == 2
    assert "is ignored" in spoilt.stderr


def test_an_interrupt_is_exit_130_with_the_last_report(
    checkmate: Checkmate, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, on_progress: Callable[[Progress], None], **__: object) -> None:
        on_progress(Progress(incumbent=10.0, bound=9.0, seconds=0.1, step="climbing"))
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "solve", interrupted)
    result = checkmate("solve", graph, "--budget", "80%")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == (
        "Interrupted: no schedule was written. climbing: best 10 s, bound 9 s, gap 10.0%.\n"
    )


def test_an_interrupted_solver_that_answers_is_no_failure(
    checkmate: Checkmate, graph: Path, chain: DFGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = api.solve(chain, "80%", solver="heuristics")
    cut_short = replace(best, origin={"interrupted": "Ctrl-C"})
    monkeypatch.setattr(api, "solve", lambda *_, **__: cut_short)
    out = tmp_path / "best.json"
    result = checkmate("solve", graph, "--budget", "80%", "-o", out)
    assert (result.exit_code, result.stderr) == (0, "Interrupted: this is the best schedule until then.\n")
    assert read_schedule(out, chain) == best.schedule


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (Progress(None, 0.0, 0.1, "min-cut"), "min-cut: no schedule yet, bound 0 s"),
        (Progress(float("inf"), 2.0, 0.1, "min-cut"), "min-cut: no schedule yet, bound 2 s"),
        (Progress(4.0, 3.0, 0.1, "cut\nMILP"), "cut\\nMILP: best 4 s, bound 3 s, gap 25.0%"),
        (Progress(0.0, 0.0, 0.1, "free"), "free: best 0 s, bound 0 s, gap 0.0%"),
        (Progress(None, float("inf"), 0.1, "proof"), "proof: no schedule yet, bound none"),
    ],
)
def test_reports_of_solvers_are_one_line(report: Progress, text: str) -> None:
    assert report_text(report, "s") == text


def test_a_terminal_sees_the_reports() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with watching("s", console) as tell:
        tell(Progress(4.0, 3.0, 0.1, "cut-milp"))
    assert "cut-milp: best 4 s, bound 3 s, gap 25.0%" in screen.getvalue()


def test_interrupted_before_any_report() -> None:
    with pytest.raises(Interrupted, match=r"^Interrupted: no schedule was written.$"), watching("s"):
        raise KeyboardInterrupt

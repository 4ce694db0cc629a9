"""The solver benchmark: its tasks, its tables, and its goals, with answers known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evaluate
from checkmate import generators, write_graph
from evaluation.goals import Finding, findings
from evaluation.results import Results, Row, read_results
from evaluation.solvers import EXPERIMENT, tasks
from evaluation.solving import cost_s


def row(
    solver: str, *moments: tuple[float, float | None, float], graph: str = "g", share: float = 0.5
) -> Row:
    """A row whose last moment is its result."""
    seconds, cost, bound = moments[-1]
    times = [None if cost is None else cost_s(moments, c) for c in (float("inf"), cost, cost)]  # type: ignore[arg-type]
    result = dict(zip(("first_s", "near_s", "final_s"), times, strict=True)) | {
        "ops": 100,
        "training": True,
        "ended": "unknown" if cost is None else "feasible",
        "note": "",
        "cost": cost,
        "bound": bound,
        "seconds": seconds,
        "held": 2**20,
        "moments": [list(moment) for moment in moments],
    }
    return Row(task={"graph": graph, "share": share, "solver": solver, "time_limit": 10.0}, result=result)


def results(*rows: Row) -> Results:
    return Results(experiment="solvers", rows=rows)


def finding(words: str, *rows: Row) -> Finding:
    (one,) = [each for each in findings(results(*rows)) if words in each.goal]
    return one


def test_against_another_solver_cost_and_time_to_its_final_cost_count() -> None:
    ours = row("auto", (0.01, 1.2, 1.0), (0.02, 1.1, 1.0), (5.0, 1.05, 1.0))
    theirs = row("checkmate-milp", (0.5, 1.2, 1.0), (4.0, 1.1, 1.0))
    assert finding("higher cost than checkmate-milp", ours, theirs).reached is True
    assert finding("faster than checkmate-milp", ours, theirs).reached is True  # 4 / 0.02 = 200
    assert finding("faster than checkmate-milp", row("auto", (0.2, 1.1, 1.0)), theirs).reached is False  # 20
    expensive = row("auto", (0.01, 1.15, 1.0))
    assert finding("higher cost than checkmate-milp", expensive, theirs).reached is False
    assert "0 of 1" in finding("faster than checkmate-milp", expensive, theirs).figures


def test_a_solver_without_a_schedule_proves_nothing_about_time() -> None:
    rows = row("auto", (0.01, 1.2, 1.0)), row("checkmate-milp", (10.0, None, 1.0))
    assert finding("higher cost than checkmate-milp", *rows).reached is None
    assert finding("faster than checkmate-milp", *rows).reached is None


@pytest.mark.parametrize(
    ("seconds", "cost", "share", "reached"),
    [(0.9, 1.0005, 0.5, True), (1.1, 1.0005, 0.5, False), (0.9, 1.002, 0.5, False), (0.9, 1.002, 0.3, None)],
)
def test_certificates_count_within_their_time_only(
    seconds: float, cost: float, share: float, reached: bool | None
) -> None:
    found = finding("at most 400 ops, budget", row("auto", (seconds, cost, 1.0), share=share))
    assert found.reached is reached


def test_layered_graphs_are_shown_beside_published_figures() -> None:
    near = row("auto", (1.0, 1.001, 1.0), graph="rl1", share=0.9)
    assert "| rl1 | RL1 | 90% | 0.10 % | 0 % in 12 s | 0.8 % in 9 s |" in EXPERIMENT.markdown(results(near))
    assert finding("RL1", near).reached is True
    assert finding("RL1", row("auto", (1.0, 1.002, 1.0), graph="rl1", share=0.9)).reached is False


def test_ratios_are_over_the_best_of_the_case() -> None:
    text = EXPERIMENT.markdown(results(row("auto", (1.0, 1.0, 1.0)), row("chen-greedy-ap", (1.0, 1.2, 1.0))))
    assert "| auto | 1 of 1 | 1.000 | 1.000 |" in text
    assert "| chen-greedy-ap | 1 of 1 | 1.200 | 1.200 | AP greedy; 1.06–1.39 |" in text


def test_a_crash_is_a_miss() -> None:
    died: dict[str, Any] = {"ended": "crashed", "note": "signal SIGSEGV"}
    missed = finding("answers", Row(task={"graph": "g", "share": 0.5, "solver": "x"}, result=died))
    assert missed.reached is False
    assert "SIGSEGV" in missed.figures


def test_a_quick_run_asks_less() -> None:
    assert {t["solver"] for t in tasks(True)} <= {t["solver"] for t in tasks(False)}
    assert sum(t["time_limit"] for t in tasks(True)) < 30


@pytest.mark.filterwarnings("ignore::DeprecationWarning:multiprocessing")
def test_a_folder_of_graph_files_is_measured_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    graphs, output = tmp_path / "graphs", tmp_path / "out"
    graphs.mkdir()
    write_graph(graphs / "chain.json", generators.chain(8))
    command = ["solvers", "--graphs", str(graphs), "--budgets", "0.5", "1", "--time-limit", "1"]
    command += ["--solvers", "first-fit", "keep-all", "-o", str(output)]
    assert evaluate.main(command) == 0
    first = read_results(output / "solvers.json")
    assert [(r["share"], r["solver"], r["ended"]) for r in first.rows] == [
        (0.5, "first-fit", "feasible"),
        (0.5, "keep-all", "unknown"),
        (1.0, "first-fit", first.rows[2]["ended"]),
        (1.0, "keep-all", "optimal"),
    ]
    assert evaluate.main(command) == 0
    assert read_results(output / "solvers.json") == first
    assert (output / "solvers.png").read_bytes().startswith(b"\x89PNG")


def test_graph_files_are_for_the_experiment_solvers_only(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needs the experiment solvers"):
        evaluate.main(["overhead", "--graphs", str(tmp_path)])

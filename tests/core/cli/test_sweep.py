"""``checkmate sweep``: a row for each budget, files, several solvers and processes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from checkmate import BudgetError, Problem, Solution
from checkmate.cli.options import budget_list, budget_of
from checkmate.cli.progress import counting
from checkmate.heuristics.best import BestHeuristic

Checkmate = Callable[..., Result]


def test_every_budget_has_a_row(checkmate: Checkmate, graph: Path) -> None:
    swept = checkmate("sweep", graph, "--budgets", "20B,0.7,80%,40", "--solver", "heuristics")
    assert (swept.exit_code, swept.stderr) == (0, "")
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in swept.stdout.splitlines() if "│" in line
    ]
    assert [row[0] for row in rows] == ["40 B", "32 B", "28 B", "20 B"]
    assert rows[0] == ["40 B", "100.0%", "40 B", "0.00%", "0.00%", "heuristics"]
    assert rows[1][:4] == ["32 B", "80.0%", "32 B", "12.50%"]
    assert rows[3] == ["20 B", "50.0%", "-", "-", "-", "infeasible"]
    assert swept.stdout.splitlines()[-1] == "3 points of 4 answers (1 infeasible), 0 errors"


def test_json_and_file_say_the_same(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "frontier.json"
    arguments = (
        "--budgets",
        "0.6:1.0:5",
        "--solver",
        "heuristics",
        "--solver",
        "keep-all",
        "-o",
        out,
        "--json",
    )
    swept = checkmate("sweep", graph, *arguments)
    facts = json.loads(swept.stdout)
    assert json.loads(out.read_text()) == facts
    assert facts["keep_all_peak"] == 40
    assert len(facts["answers"]) == 10
    peaks, costs = ([point[key] for point in facts["points"]] for key in ("peak", "cost"))
    assert peaks == sorted(set(peaks))
    assert costs == sorted(set(costs), reverse=True)
    assert facts["points"][-1].items() >= {"peak": 40, "cost": 8.0, "status": "optimal"}.items()


def test_processes_answer_as_one_does(checkmate: Checkmate, graph: Path) -> None:
    def points(*jobs: str) -> object:
        swept = checkmate("sweep", graph, "--budgets", "60%,80%", "--solver", "heuristics", "--json", *jobs)
        assert swept.exit_code == 0
        return [point | {"seconds": 0} for point in json.loads(swept.stdout)["points"]]

    assert points("--jobs", "2") == points()


def test_no_schedule_at_all_is_exit_1(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "frontier.json"
    swept = checkmate("sweep", graph, "--budgets", "24B,20B", "--solver", "keep-all", "-o", out)
    assert swept.exit_code == 1
    assert swept.stdout.count("none found") == 1
    assert swept.stdout.count("infeasible") == 1
    assert "no schedule was found for any of these budgets" in swept.stderr
    assert json.loads(out.read_text())["points"] == []


def test_an_interrupt_is_exit_130_and_the_answers_are_written(
    checkmate: Checkmate, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = BestHeuristic.solve, iter([True, False])

    def once(self: BestHeuristic, problem: Problem) -> Solution:
        if next(calls):
            return real(self, problem)
        raise KeyboardInterrupt

    monkeypatch.setattr(BestHeuristic, "solve", once)
    files = ("-o", tmp_path / "frontier.json", "--plot", tmp_path / "frontier.svg")
    swept = checkmate("sweep", graph, "--budgets", "80%,60%", "--solver", "heuristics", "--json", *files)
    assert swept.exit_code == 130
    assert swept.stderr == "Interrupted after 1 of 2 answers: the frontier has only these.\n"
    facts = json.loads(swept.stdout)
    assert json.loads((tmp_path / "frontier.json").read_bytes()) == facts
    assert [answer["budget"] for answer in facts["answers"]] == [32]
    assert (tmp_path / "frontier.svg").exists()


def test_an_interrupt_before_the_first_answer_writes_nothing(
    checkmate: Checkmate, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BestHeuristic, "solve", interrupted)
    out = tmp_path / "frontier.json"
    out.write_text("old")
    swept = checkmate("sweep", graph, "--budgets", "80%", "--solver", "heuristics", "-o", out)
    assert (swept.exit_code, swept.stdout) == (130, "")
    assert swept.stderr == "Interrupted after 0 of 1 answers: nothing was written.\n"
    assert out.read_text() == "old"


def test_a_solver_that_fails_is_named_and_stops_no_other(
    checkmate: Checkmate, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkmate.heuristics.best.BestHeuristic.solve", lambda *_: 1 / 0)
    swept = checkmate("sweep", graph, "--budgets", "40", "--solver", "heuristics", "--solver", "keep-all")
    assert swept.exit_code == 0
    assert swept.stderr.startswith("Warning: solver 'heuristics' at 40 B: ")
    assert "ZeroDivisionError" in swept.stderr


@pytest.mark.parametrize("name", ["frontier.svg", "frontier.PNG"])
def test_pictures(checkmate: Checkmate, graph: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    swept = checkmate(
        "sweep", graph, "--budgets", "80%,50%", "--solver", "heuristics", "--plot", tmp_path / name
    )
    assert swept.exit_code == 0
    assert (tmp_path / name).stat().st_size > 1000


def test_a_picture_without_matplotlib_is_refused_before_the_work(
    checkmate: Checkmate, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkmate.cli.commands.sweep.util.find_spec", lambda _: None)
    monkeypatch.setattr(
        "checkmate.cli.commands.sweep.ask_all", lambda *_, **__: pytest.fail("worked in vain")
    )
    swept = checkmate("sweep", graph, "--budgets", "80%", "--plot", tmp_path / "x.png")
    assert swept.exit_code == 2
    assert "checkmate-core[plot]" in swept.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--budgets", "0.3:1.0"], "a range is start:stop:count"),
        (["--budgets", "0.3:1.0:0"], "a range is start:stop:count"),
        (["--budgets", "0.3:1.0:1000000"], "a range is start:stop:count"),
        (["--budgets", "0.3:1.0:1.5"], "a range is start:stop:count"),
        (["--budgets", "1GiB:2GiB:3"], "a range is start:stop:count"),
        (["--budgets", "0.3:nan:3"], "a range is start:stop:count"),
        (["--budgets", "0.3:1.0:3:4"], "a range is start:stop:count"),
        (["--budgets", "0.5-1.0"], "a range is start:stop:count"),
        (["--budgets", "80%, 50% - 100%"], "a range is start:stop:count"),
        (["--budgets", "1GiB..2GiB"], "a range is start:stop:count"),
        (["--budgets", "0.0:1.0:3"], "must be positive"),
        (["--budgets", "80%,,60%"], "a budget is missing"),
        (["--budgets", ""], "a budget is missing"),
        (["--budgets", "80%,8X"], "can't read '8X'"),
        (["--budgets", "-1"], "can't read '-1'"),
        (["--budgets", "80%", "--solver", "everst"], "no solver 'everst'"),
        (["--budgets", "80%", "--jobs", "0"], "--jobs"),
        (["--budgets", "80%", "--plot", "x.doc"], "must end with .png, .svg, .pdf"),
        (["--budgets", "80%", "-o", "/nonexistent/x.json"], "there is no folder"),
        ([], "Missing option '--budgets'"),
    ],
)
def test_bad_arguments_are_exit_2(
    checkmate: Checkmate, graph: Path, arguments: list[str], complaint: str
) -> None:
    result = checkmate("sweep", graph, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr


def test_the_graph_is_not_overwritten(checkmate: Checkmate, graph: Path) -> None:
    before = graph.read_bytes()
    assert checkmate("sweep", graph, "--budgets", "80%", "-o", graph).exit_code == 2
    assert graph.read_bytes() == before


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 200))
def test_a_range_begins_and_ends_where_it_says(start: int, stop: int, count: int) -> None:
    shares = budget_list(f"{start}%:{stop / 100:.2f}:{count}")
    assert len(shares) == count
    assert shares[0] == start / 100
    assert count == 1 or shares[-1] == stop / 100
    assert shares == sorted(shares, reverse=start > stop)


@pytest.mark.parametrize("text", ["60%", "8GiB", "123", "nonsense", "", "-0.5", "1e3", "٣"])
def test_other_texts_than_shares_are_left_to_the_parser_of_sizes(text: str) -> None:
    assert budget_of(text) == text


def test_whole_shares_in_a_range() -> None:
    assert budget_list("1:2:3") == [1.0, 1.5, 2.0]
    with pytest.raises(BudgetError, match="range"):
        budget_list("10:20:3")


def test_a_terminal_sees_the_count() -> None:
    screen = io.StringIO()
    with counting("solving", Console(file=screen, force_terminal=True, width=100, color_system=None)) as tell:
        tell(2, 5, "auto at 32 B: optimal")
    assert "2/5" in screen.getvalue()
    assert "auto at 32 B: optimal" in screen.getvalue()

"""For every text, the output holds only visible characters, and the text adds no line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from checkmate import (
    DFGraph,
    Schedule,
    Solution,
    simulate,
    solve,
    sweep,
    write_graph,
    write_schedule,
)
from checkmate.cli import findings
from checkmate.cli.app import app
from checkmate.errors import CheckmateError, InfeasibleBudgetError
from checkmate.files.serialize import graph_bytes, read_schedule, schedule_bytes
from checkmate.plugins import SolverSpec, hookimpl, loader, reset
from checkmate.problem.problem import Problem

pytestmark = pytest.mark.slow

FORGED = "\nError: forged"
PIECES = (
    "\x1b[2J",
    "\x9b31m",
    FORGED,
    "\r",
    "\x00",
    "\x07",
    "\u202e",
    "\u2028",
    "\ud800",
    "\udc9b",
    "[red]",
    "🔥",
)
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(st.characters(codec=None), max_size=3), min_size=1).map(
    "".join
)
LONG = FORGED + "\x1b[2J" * 10**5


def assert_harmless(shown: str) -> None:
    """Every line is Checkmate's own, and visible."""
    for line in shown.split("\n"):
        assert line.isprintable(), ascii(line)
        assert not line.startswith(FORGED[1:])
    assert shown.startswith("{") or len(shown) < 40_000  # JSON keeps all characters, for programs


def hostile_graph(text: str) -> DFGraph:
    return DFGraph.from_nodes(
        cost=[1.0] * 4,
        size=[4] * 4,
        deps=[[], [0], [1], [0, 2]],
        backward=[False, False, True, True],
        names=[text] * 4,
        name=text,
        cost_unit=text,
    )


def encodable(text: str) -> str:
    """The text as a file or an argument can hold it."""
    return text.encode(errors="replace").decode()


on_screen = settings(
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def check_library(text: str) -> None:
    graph = hostile_graph(text)
    problem = Problem(graph=graph, budget=8)
    shown: list[object] = [repr(graph), graph.op_label(0), graph.tensor_label(0), graph.digest]
    shown += [
        solve(graph, "100%", solver="keep-all"),
        solve(graph, "100%", solver="keep-all").explain(),
        Solution.unknown(problem, solver=text, reason=text),
    ]
    steps = schedule_bytes(Schedule.from_sequence(graph, range(4)), graph)
    other = DFGraph.from_nodes(cost=[1.0], size=[4], deps=[[]], name=text, cost_unit=text)
    wrong: tuple[Callable[[], object], ...] = (
        lambda: solve(graph, 8),
        lambda: solve(graph, 16, solver=text),
        lambda: solve(graph, text),
        lambda: sweep(graph, ["100%"], ["keep-all"]),
        lambda: simulate(graph, Schedule.from_sequence(graph, [0, 2])),
        lambda: DFGraph.from_nodes(cost=[-1.0], size=[4], deps=[[]], names=[text]),
        lambda: DFGraph.from_nodes(cost=[1.0] * 2, size=[4] * 2, deps=[[1], []], names=[text] * 2),
        lambda: read_schedule(steps, other),
        lambda: graph_bytes(graph),
    )
    for act in wrong:
        try:
            act()
        except (CheckmateError, ValueError, OSError) as error:
            shown.append(error)
    told = {"budget": 1, "minimum": 2, "floor": 2, "bottleneck": text, "proved": False, "reason": text}
    shown.append(InfeasibleBudgetError(**told))  # type: ignore[arg-type]
    for thing in shown:
        assert_harmless(str(thing))
        assert_harmless(repr(thing))


@on_screen
@given(HOSTILE)
def test_reprs_and_errors_of_the_library(text: str) -> None:
    check_library(text)


def test_reprs_and_errors_of_the_library_at_length() -> None:
    check_library(LONG)


def shown_by(*arguments: object) -> str:
    """The output as a terminal gets it."""
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, color=True, prog_name="checkmate")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def check_files(text: str, folder: Path) -> None:
    """Names and units in a graph, hints in a schedule."""
    text = encodable(text)
    graph, files = hostile_graph(text), (folder / "graph.json", folder / "schedule.json")
    write_graph(files[0], graph)
    write_schedule(files[1], Schedule.from_sequence(graph, range(4)), graph, {"budget": text, text: text})
    for command in (
        ["show", files[0]],
        ["show", *files],
        ["show", *files, "--json"],
        ["simulate", *files],
        ["solve", files[0], "--budget", "100%", "--solver", "heuristics"],
        ["solve", files[0], "--budget", "7B", "--solver", "heuristics"],
        ["sweep", files[0], "--budgets", "7B,100%", "--solver", "heuristics", "--json"],
        ["sweep", files[0], "--budgets", "7B,100%", "--solver", "heuristics"],
    ):
        assert_harmless(shown_by(*command))


@on_screen
@given(HOSTILE)
def test_names_units_and_hints_of_files(tmp_path: Path, text: str) -> None:
    check_files(text, tmp_path)


def test_names_units_and_hints_of_files_at_length(tmp_path: Path) -> None:
    check_files(LONG, tmp_path)


@on_screen
@given(HOSTILE)
def test_budgets_as_typed(graph: Path, tmp_path: Path, text: str) -> None:
    assume("\0" not in text and "/" not in text)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        text = encodable(text)
    assume(len(os.fsencode(text)) < 200 and text not in (".", ".."))
    out = tmp_path / text
    for command in (
        [text],
        [f"--{text}"],
        ["solve", graph, "--budget", text],
        ["solve", graph, "--budget", "100%", "--solver", text],
        ["solve", graph, "--budget", "100%", "--time-limit", text],
        ["solve", graph, "--budget", "100%", "--solver", "keep-all", "-o", out],
        ["solve", graph, f"--{text}"],
        ["sweep", graph, "--budgets", text],
        ["simulate", graph, out],
        ["simulate", out, out],
        ["simulate", graph, tmp_path / "missing" / text],
        ["show", graph, "-o", out],
        ["show", graph, "-o", out, "--format", "html"],
        ["show", graph, "-o", tmp_path / "missing" / text],
        ["show", graph, "--max-size", text],
        ["trace", "-o", out, text],
        ["run", text],
        ["run", graph, "--graph", text],
    ):
        assert_harmless(shown_by(*command))


@settings(on_screen, max_examples=5)  # an example is 12 commands, two of them doctor's
@given(HOSTILE)
def test_texts_of_plugins_and_variables(plug: Callable[..., None], graph: Path, text: str) -> None:
    variable = encodable(text).replace("\0", "")

    class Hostile:
        @staticmethod
        @hookimpl
        def checkmate_register_solvers() -> list[SolverSpec]:
            return [
                SolverSpec(name="breaks", summary="s", load=_raising(text), requires=(text,)),
                SolverSpec(name="fails", summary="s", load=lambda: _Solver(_raising(text))),
                SolverSpec(name="nothing", summary="s", load=lambda: _Solver(_nothing(text))),
            ]

    plug(("good", lambda: Hostile, text), (text, _raising(text), text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHECKMATE_UNKNOWN", variable)
        patch.setattr(
            findings,
            "load_errors",
            lambda program: [loader.one_line(OSError(text))],
        )
        for name in ("breaks", "fails", "nothing", "none"):
            assert_harmless(shown_by("solve", graph, "--budget", "100%", "--solver", name))
            assert_harmless(shown_by("sweep", graph, "--budgets", "100%", "--solver", name))
        for command in ("plugins", "doctor"):
            assert_harmless(shown_by(command))
            assert_harmless(shown_by(command, "--json"))
    reset()


class _Solver:
    def __init__(self, solve: Callable[[Problem], Solution]) -> None:
        self.solve = solve


def _raising(text: str) -> Callable[..., Solution]:
    def fail(*_: object) -> Solution:
        raise RuntimeError(text)

    return fail


def _nothing(text: str) -> Callable[[Problem], Solution]:
    return lambda problem: Solution.unknown(problem, solver=text, reason=text)

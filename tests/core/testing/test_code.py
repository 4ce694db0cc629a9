"""Counterexamples can be pasted: code of a graph, a problem or a schedule makes an equal one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Problem, Schedule, Tensor
from checkmate.testing.code import graph_code, problem_code, schedule_code
from checkmate.testing.strategies import graphs, problems, schedules, spread

NAMES = {"DFGraph": DFGraph, "Op": Op, "Problem": Problem, "Schedule": Schedule, "Tensor": Tensor}


@given(graph=spread(graphs()))
def test_code_of_a_graph(graph: DFGraph) -> None:
    pasted = eval(graph_code(graph), NAMES)  # noqa: S307 - our own text
    assert pasted == graph
    assert (pasted.name, pasted.digest) == (graph.name, graph.digest)


@given(problem=problems())
def test_code_of_a_problem(problem: Problem) -> None:
    assert eval(problem_code(problem), NAMES) == problem  # noqa: S307


@given(data=st.data(), graph=graphs())
def test_code_of_a_schedule(data: st.DataObject, graph: DFGraph) -> None:
    schedule = data.draw(schedules(graph))
    assert eval(schedule_code(schedule), NAMES) == schedule  # noqa: S307

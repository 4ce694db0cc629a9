"""Schedules: words over compute and free, and the earliest legal frees of an op sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import Compute, DFGraph, Free, GraphError, InvalidScheduleError, Schedule, simulate
from checkmate.testing.strategies import graphs, schedules, valid_schedules


@given(data=st.data())
def test_a_schedule_is_its_steps(data: st.DataObject) -> None:
    schedule = data.draw(schedules(data.draw(graphs())))
    copy = Schedule.of(list(schedule))
    assert copy == schedule
    assert hash(copy) == hash(schedule)
    assert len(copy) == len(list(copy))
    assert [s.op for s in copy if isinstance(s, Compute)] == copy.sequence.tolist()
    assert copy != Schedule.of([*copy, Free(0)])


@given(data=st.data())
def test_frees_of_a_sequence_are_legal_and_as_early_as_can_be(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    given_schedule = data.draw(valid_schedules(graph))
    lean = Schedule.from_sequence(graph, given_schedule.sequence)
    ours, theirs = simulate(graph, lean), simulate(graph, given_schedule)
    assert ours.peak <= theirs.peak
    assert ours.cost == theirs.cost
    frees = [i for i, step in enumerate(lean) if isinstance(step, Free)]
    for i in frees:  # one step earlier, before the compute it follows, it would break something or not exist
        steps = list(lean)
        at = max(j for j in range(i) if isinstance(steps[j], Compute))
        steps.insert(at, steps.pop(i))
        with pytest.raises(InvalidScheduleError):
            simulate(graph, Schedule.of(steps))


def test_the_last_copy_of_an_output_stays() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]], outputs=[0, 1])
    assert list(Schedule.from_sequence(graph, [0, 1])) == [Compute(0), Compute(1)]
    again = Schedule.from_sequence(graph, [0, 1, 0])
    assert list(again) == [Compute(0), Compute(1), Free(0), Compute(0)]


@pytest.mark.parametrize("sequence", [[2], [-1]])
def test_a_sequence_names_ops_of_the_graph(sequence: list[int]) -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])
    with pytest.raises(GraphError, match="outside of 0 … 1"):
        Schedule.from_sequence(graph, sequence)


@pytest.mark.parametrize(
    "codes",
    [[0.5], [0.0], [[0, 1]], 3, [True], ["0"], np.array([2**63], dtype=np.uint64), [2**64], [None]],
)
def test_codes_must_be_a_list_of_integers(codes: Any) -> None:
    with pytest.raises(GraphError, match="one-dimensional array of integers"):
        Schedule(np.array(codes))


def test_an_empty_schedule_and_small_integers_are_fine() -> None:
    assert Schedule(np.array([])) == Schedule.of([])
    assert Schedule(np.array([0, -1], dtype=np.int8)).codes.dtype == np.int64
    with pytest.raises(GraphError, match="float64"):
        Schedule.of([Compute(0.5)])  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [Compute(-1), Free(-3)])
def test_negative_indices_are_no_steps_of_the_other_kind(step: Compute | Free) -> None:
    with pytest.raises(GraphError, match="step 1 is"):
        Schedule.of([Compute(0), step])

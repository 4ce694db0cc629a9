"""Readings of schedules: all figures add up to those of the judge."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from checkmate import Compute, DFGraph, Free, Schedule, Timeline, simulate
from checkmate.problem.explanation import Recomputed, _Highest, explanation
from checkmate.problem.reading import Holder, Phase, Reading

from .judged import by_hand, timelines


@given(timelines())
def test_the_kinds_add_up_to_the_judges_memory(timeline: Timeline) -> None:
    reading = Reading(timeline)
    total = sum(reading.by_kind.values(), start=np.zeros(len(reading.ops), dtype=np.int64))
    assert total.tolist() == reading.memory.tolist()
    assert max(reading.memory.tolist(), default=timeline.graph.base_size) == timeline.peak
    assert reading.starts[-1] == timeline.cost


@given(timelines())
def test_holders_add_up_to_the_memory_of_their_run(timeline: Timeline) -> None:
    reading = Reading(timeline)
    for run, memory in enumerate(reading.memory.tolist()):
        holders = reading.holders(run)
        assert sum(h.size for h in holders) == memory
        assert [h.size for h in holders] == sorted((h.size for h in holders), reverse=True)


@given(timelines())
def test_the_largest_residents_are_those_that_the_judge_holds(timeline: Timeline) -> None:
    graph, reading = timeline.graph, Reading(timeline)
    runs = list(range(len(reading.ops)))[::2]
    for run, top in zip(runs, reading.largest_at(runs, 3), strict=True):
        step = int(reading.steps[run])
        before = timeline.resident_at(step) - timeline.reused_at(step) - set(graph.inputs)
        held = [*before, *graph.ops[reading.ops[run]].outputs]
        sizes = sorted((graph.tensors[t].size for t in held), reverse=True)
        assert [graph.tensors[t].size for t in top] == sizes[:3]
        assert set(top) <= set(held)


@given(timelines())
def test_phases_tell_first_runs_from_later_ones(timeline: Timeline) -> None:
    reading, seen = Reading(timeline), set()
    for v, phase in zip(reading.ops.tolist(), reading.phases.tolist(), strict=True):
        first = Phase.BACKWARD if timeline.graph.ops[v].backward else Phase.FORWARD
        assert phase == (Phase.RECOMPUTE if v in seen else first)
        seen.add(v)


@given(timelines())
def test_recomputed_ops_agree_with_the_judge(timeline: Timeline) -> None:
    reading = Reading(timeline)
    rows = explanation(reading).rows
    assert {row.index: row.again for row in rows} == {
        v: runs - 1 for v, runs in enumerate(timeline.runs.tolist()) if runs > 1
    }
    for row in rows:
        if row.without == 0:
            assert (row.size, row.average, row.saved) == (0, 0.0, 0)
        if row.saved > 0:
            assert row.without > timeline.peak


@given(timelines())
def test_the_highest_of_any_stretch_is_found(timeline: Timeline) -> None:
    memory = Reading(timeline).memory
    highest = _Highest(memory)
    for a in range(len(memory)):
        for b in range(a + 1, len(memory) + 1):
            assert highest.between(a, b) == max(memory[a:b].tolist())


def test_known_by_hand() -> None:
    reading = Reading(by_hand())
    assert reading.memory.tolist() == [23, 30, 41, 25, 26]
    assert reading.starts.tolist() == [0.0, 2.0, 3.0, 4.0, 6.0, 10.0]
    assert reading.phases.tolist() == [0, 0, 1, 2, 1]
    assert reading.peak_run == 2
    (row,) = explanation(reading).rows
    assert row == Recomputed(
        index=0,
        op="a",
        module="",
        times=2.0,
        again=1,
        paid=2.0,
        size=8,
        average=0.8,
        saved=8,
        without=49,
        reason="8 B less at the peak",
    )
    assert reading.holders(2) == [
        Holder("c", "workspace", 20),
        Holder("(always resident)", "fixed", 10),
        Holder("x", "input", 5),
        Holder("B", "activation", 4),
        Holder("C", "gradient", 2),
    ]


def test_graph_outputs_count_as_used() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 3, size=[4, 1, 1], deps=[[], [0], [1]], outputs=[0, 2])
    schedule = Schedule.of([Compute(0), Compute(1), Free(0), Compute(2), Compute(0)])
    (row,) = explanation(simulate(graph, schedule)).rows
    assert (row.index, row.size) == (0, 4)


def test_a_useless_run_is_distinguished_from_a_useful_one() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])
    (row,) = explanation(simulate(graph, Schedule.from_sequence(graph, [0, 0, 1]))).rows
    assert (row.size, row.average, row.reason) == (0, 0.0, "saved nothing: no later op needed it again")


def test_an_empty_schedule_has_an_empty_reading() -> None:
    graph = DFGraph.from_nodes(cost=[], size=[], deps=[], fixed_size=7)
    reading = Reading(simulate(graph, Schedule.from_sequence(graph, [])))
    assert (reading.peak_run, reading.starts.tolist(), len(reading.phases)) == (-1, [0.0], 0)
    assert reading.holders(-1) == [Holder("(always resident)", "fixed", 7)]
    assert explanation(reading).rows == ()

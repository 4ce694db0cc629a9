"""Late frees: an executor that frees by liveness, and holds these copies, holds what the simulator counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkmate import Schedule, simulate
from checkmate.framework import late_frees
from checkmate.testing.strategies import graphs, valid_schedules


@given(data=st.data())
def test_liveness_and_the_late_frees_together_hold_what_the_simulator_counts(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(valid_schedules(graph, reorder=True))
    sequence, held = schedule.sequence.tolist(), late_frees(graph, schedule)
    uses: list[tuple[int, int, int]] = []  # (tensor, run that makes a copy, last run that needs it)
    copies: dict[int, int] = {}
    for run, v in enumerate(sequence):
        for t in held.get(run, ()):
            uses[copies[t]] = (*uses[copies[t]][:2], run)
        for t in graph.ops[v].inputs:
            if t in copies:
                uses[copies[t]] = (*uses[copies[t]][:2], run)
        for t in graph.ops[v].outputs:
            copies[t] = len(uses)
            uses.append((t, run, run))
    for t in (*graph.outputs, *held.get(len(sequence), ())):
        if t in copies:
            uses[copies[t]] = (*uses[copies[t]][:2], len(sequence))
    timeline = simulate(graph, schedule)
    steps = [step for step, code in enumerate(schedule.codes.tolist()) if code >= 0]
    counted = timeline.memory[steps].tolist()
    for run, v in enumerate(sequence):
        live = sum(graph.tensors[t].size for t, made, last in uses if made <= run <= last)
        live -= sum(graph.tensors[t].size for t in timeline.reused_at(steps[run]))
        assert graph.base_size + live + graph.ops[v].workspace == counted[run]


@given(data=st.data())
def test_schedules_made_by_liveness_have_none(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    sequence = data.draw(valid_schedules(graph)).sequence.tolist()
    assert late_frees(graph, Schedule.from_sequence(graph, sequence)) == {}

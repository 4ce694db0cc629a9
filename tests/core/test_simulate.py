"""The judge against a second judge that is written differently and shares no code with it.

The model keeps copies as objects, memory as a sum over live copies, and the rules as a list of
predicates; the simulator keeps counters. Both must agree on everything, on valid and invalid schedules.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from checkmate import (
    Compute,
    DFGraph,
    Free,
    InvalidScheduleError,
    Op,
    Reason,
    Schedule,
    Tensor,
    simulate,
)
from checkmate.testing.strategies import graphs, schedules, valid_schedules


@dataclass
class Model:
    """Residents as a set of tensors; every step is a set expression; memory is summed in every step."""

    graph: DFGraph
    done: Counter[int] = field(default_factory=Counter)
    trace: list[int] = field(default_factory=list)
    states: list[set[int]] = field(default_factory=list)
    fault: tuple[int, Reason] | None = None

    def weigh(self, tensors: set[int]) -> int:
        return self.graph.fixed_size + sum(self.graph.tensors[t].size for t in tensors)

    def play(self, schedule: Schedule) -> None:
        inputs, outputs = set(self.graph.inputs), set(self.graph.outputs)
        alive = set(inputs)
        replaced: set[int] = set()  # inputs that the latest op allocates in place of, freed or not
        for number, step in enumerate(schedule):
            self.states.append(alive)
            reason = self.objection(step, alive, inputs)
            if reason is not None:
                self.fault = (number, reason)
                return
            match step:
                case Compute(op=v):
                    op = self.graph.ops[v]
                    fresh = sum(self.graph.tensors[t].size for t in op.outputs)
                    replaced = set(op.reuses) & self.freed_after(schedule, number) - inputs
                    self.trace.append(self.weigh(alive - replaced) + fresh + op.workspace)
                    alive = alive | set(op.outputs)
                    self.done[v] += 1
                case Free(tensor=t):
                    alive = alive - {t}
                    self.trace.append(self.weigh(alive - replaced))
        self.states.append(alive)
        if not outputs <= alive:
            self.fault = (len(schedule), Reason.LOST_OUTPUT)

    def freed_after(self, schedule: Schedule, number: int) -> set[int]:
        """The tensors freed between a compute and the next one."""
        following = itertools.takewhile(lambda step: isinstance(step, Free), list(schedule)[number + 1 :])
        return {step.tensor for step in following if isinstance(step, Free)}

    def objection(self, step: Compute | Free, alive: set[int], inputs: set[int]) -> Reason | None:
        match step:
            case Compute(op=v):
                if v not in range(self.graph.n_ops):
                    return Reason.UNKNOWN_OP
                if set(self.graph.ops[v].inputs) - alive:
                    return Reason.MISSING_INPUT
                if self.done[v] and not self.graph.ops[v].recomputable:
                    return Reason.RECOMPUTED_ONCE_ONLY
            case Free(tensor=t):
                if t not in range(self.graph.n_tensors):
                    return Reason.UNKNOWN_TENSOR
                if t in inputs:
                    return Reason.FREED_INPUT
                if t not in alive:
                    return Reason.NOT_RESIDENT
        return None


@given(data=st.data())
def test_the_judge_agrees_with_the_model(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    model = Model(graph)
    model.play(schedule)
    event(model.fault[1].name if model.fault else "valid")
    if model.fault is not None:
        with pytest.raises(InvalidScheduleError) as caught:
            simulate(graph, schedule)
        assert (caught.value.step, caught.value.reason) == model.fault
        return
    timeline = simulate(graph, schedule)
    assert timeline.memory.tolist() == model.trace
    assert timeline.peak == max(model.trace, default=model.weigh(set(graph.inputs)))
    assert timeline.runs.tolist() == [model.done[v] for v in range(graph.n_ops)]
    assert timeline.cost == pytest.approx(sum(n * graph.ops[v].cost for v, n in model.done.items()))
    assert timeline.recomputes == sum(n - 1 for n in model.done.values())
    assert [timeline.resident_at(step) for step in range(len(schedule) + 1)] == model.states
    if model.trace:
        peak_step = next(step for step, held in enumerate(model.trace) if held == max(model.trace))
        assert timeline.peak_step == peak_step
        assert list(schedule)[peak_step] == Compute(op=timeline.peak_op or 0)


def test_an_input_that_dies_with_an_op_that_reuses_it_does_not_count_while_it_runs() -> None:
    ops = [
        Op(name="make", inputs=(), outputs=(0,), cost=1),
        Op(name="add", inputs=(0,), outputs=(1,), cost=1, reuses=(0,)),
        Op(name="read", inputs=(0, 1), outputs=(2,), cost=1),
    ]
    tensors = [Tensor(name=name, size=size) for name, size in (("x", 4), ("y", 4), ("z", 1))]
    short = DFGraph(ops=ops[:2], tensors=tensors[:2], outputs=(1,))
    assert simulate(short, Schedule([0, 1, ~0])).memory.tolist() == [4, 4, 4]
    assert simulate(short, Schedule([0, 1])).memory.tolist() == [4, 8]  # never freed
    long = DFGraph(ops=ops, tensors=tensors, outputs=(2,))
    assert simulate(long, Schedule([0, 1, 2, ~0, ~1])).memory.tolist() == [4, 8, 9, 5, 1]
    again = simulate(long, Schedule([0, 1, ~0, 0, 2, ~0, ~1]))
    assert again.memory.tolist() == [4, 4, 4, 8, 9, 5, 1]
    assert [again.reused_at(step) for step in range(3)] == [set(), {0}, set()]


def test_a_large_tensor_freed_before_a_reused_one_hides_no_bytes() -> None:
    ops = [
        Op(name="make", inputs=(), outputs=(0, 1), cost=1),
        Op(name="add", inputs=(0, 1), outputs=(2,), cost=1, reuses=(1,)),
    ]
    tensors = [Tensor(name=name, size=size) for name, size in (("large", 9), ("x", 4), ("y", 4))]
    graph = DFGraph(ops=ops, tensors=tensors, outputs=(2,))
    timeline = simulate(graph, Schedule([0, 1, ~0, ~1]))
    assert timeline.memory.tolist() == [13, 13, 4, 4]


@given(data=st.data())
def test_valid_schedules_are_valid(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    timeline = simulate(graph, data.draw(valid_schedules(graph)))
    assert timeline.cost >= graph.ideal_cost * (1 - 1e-12)
    assert timeline.overhead >= -1e-12
    assert set(graph.outputs) <= timeline.resident_at(len(timeline.schedule))


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_its_case(reason: Reason) -> None:
    steps = {
        Reason.MISSING_INPUT: [Compute(1)],
        Reason.NOT_RESIDENT: [Free(1)],
        Reason.FREED_INPUT: [Free(0)],
        Reason.RECOMPUTED_ONCE_ONLY: [Compute(0), Compute(0)],
        Reason.LOST_OUTPUT: [Compute(0), Compute(1), Free(2)],
        Reason.UNKNOWN_OP: [Compute(2)],
        Reason.UNKNOWN_TENSOR: [Free(3)],
    }[reason]
    with pytest.raises(InvalidScheduleError, match=reason.name) as caught:
        simulate(TINY, Schedule.of(steps))
    at_end = reason is Reason.LOST_OUTPUT
    assert caught.value.step == (len(steps) if at_end else len(steps) - 1)
    assert caught.value.subject.startswith(("op", "tensor"))


TINY = DFGraph(
    ops=(
        Op(name="once", inputs=(0,), outputs=(1,), cost=1.0, recomputable=False),
        Op(name="twice", inputs=(1,), outputs=(2,), cost=2.0, workspace=7),
    ),
    tensors=(Tensor(name="in", size=4), Tensor(name="mid", size=2), Tensor(name="out", size=1)),
    inputs=(0,),
    outputs=(2,),
    fixed_size=100,
)


def test_a_recomputation_holds_the_old_and_the_new_copy_while_it_runs() -> None:
    timeline = simulate(TINY, Schedule.of([Compute(0), Compute(1), Compute(1), Free(1)]))
    assert timeline.memory.tolist() == [106, 114, 115, 105]
    assert (timeline.peak, timeline.peak_step, timeline.peak_op, timeline.cost) == (115, 2, 1, 5.0)
    assert timeline.overhead == pytest.approx(2 / 3)
    assert timeline.resident_at(3) == {0, 1, 2}


def test_an_empty_schedule_of_an_empty_graph_holds_the_fixed_bytes() -> None:
    timeline = simulate(DFGraph(ops=(), tensors=(), fixed_size=3), Schedule(np.array([], dtype=np.int64)))
    assert (timeline.peak, timeline.cost, timeline.peak_step, timeline.peak_op) == (3, 0.0, -1, None)
    assert timeline.resident_at(0) == frozenset()


@pytest.mark.parametrize("step", [-1, 3])
def test_a_step_that_is_not_there_has_no_residents(step: int) -> None:
    timeline = simulate(TINY, Schedule.of([Compute(0), Compute(1)]))
    with pytest.raises(IndexError, match=f"step is {step}, must be within 0 … 2"):
        timeline.resident_at(step)


def test_bytes_stay_exact_beyond_double_precision() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[2**60 + 1, 2**60 + 3], deps=[[], []])
    assert simulate(graph, Schedule.of([Compute(0), Compute(1)])).peak == 2**61 + 4


def test_results_are_read_only() -> None:
    timeline = simulate(TINY, Schedule.of([Compute(0), Compute(1)]))
    for array in (timeline.memory, timeline.runs, timeline.schedule.codes):
        assert not array.flags.writeable

"""Laws of lowering: valid for all kept sets; without drops, no recomputation.

``test_plan`` tests lowering of the plan of a schedule.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from checkmate.errors import PlanError
from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.model.lower import lazy_sequence, lower, sequence_from_moments
from checkmate.model.plan import Plan
from checkmate.model.schedule import Compute, Free, Schedule
from checkmate.simulate import simulate
from checkmate.testing.strategies import graphs


@given(graphs(), st.data())
def test_always_valid_and_no_op_runs_twice_after_the_moment(graph: DFGraph, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, graph.n_ops))
    masks = st.lists(st.booleans(), min_size=graph.n_tensors, max_size=graph.n_tensors)
    keep = np.array(data.draw(masks), dtype=bool)
    sequence = lazy_sequence(graph, keep, at)
    assert sequence[:at] == list(range(at))
    assert [v for v in sequence[at:] if v >= at] == list(range(at, graph.n_ops))
    assert len(set(sequence[at:])) == len(sequence[at:])
    schedule = Schedule.from_sequence(graph, sequence)
    timeline = simulate(graph, schedule)

    resident = timeline.resident_at(next((s for s, c in enumerate(schedule.codes) if c == at), len(schedule)))
    made_before = {t for v in range(at) if graph.ops[v].recomputable for t in graph.ops[v].outputs}
    forgotten = {t for t in made_before if not keep[t]}
    inputs_of_at = set(graph.ops[at].inputs) if at < graph.n_ops else set(graph.outputs)
    assert forgotten & resident <= inputs_of_at | _made_again(graph, sequence[at:], at)


def _made_again(graph: DFGraph, tail: list[int], at: int) -> set[int]:
    first = tail.index(at) if at in tail else len(tail)
    return {t for v in tail[:first] for t in graph.ops[v].outputs}


@given(graphs(), st.data())
def test_keeping_everything_is_the_base_order(graph: DFGraph, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, graph.n_ops))
    assert lazy_sequence(graph, np.ones(graph.n_tensors, dtype=bool), at) == list(range(graph.n_ops))


@given(graphs(), st.data())
def test_a_sequence_of_several_moments_is_valid_and_recomputes_at_most_once_between_them(
    graph: DFGraph, data: st.DataObject
) -> None:
    moments = data.draw(st.lists(st.integers(0, graph.n_ops - 1), min_size=1, max_size=3, unique=True))
    masks = st.lists(st.booleans(), min_size=graph.n_tensors, max_size=graph.n_tensors)
    sequence = sequence_from_moments(graph, {at: np.array(data.draw(masks), dtype=bool) for at in moments})
    assert list(dict.fromkeys(sequence)) == list(range(graph.n_ops))
    assert max(sequence.count(v) for v in range(graph.n_ops)) <= 1 + len(moments)
    simulate(graph, Schedule.from_sequence(graph, sequence))


def test_tensors_gained_at_a_later_moment_are_recomputed() -> None:
    """Tensor 0 is dropped at op 1 and kept again at op 2, although only op 3 reads it."""
    graph = DFGraph.from_nodes(cost=[1] * 4, size=[1] * 4, deps=[[], [], [1], [0, 2]])
    everything = np.ones(4, dtype=bool)
    assert sequence_from_moments(graph, {1: ~everything, 2: everything}) == [0, 1, 0, 2, 3]
    assert sequence_from_moments(graph, {1: ~everything}) == [0, 1, 2, 0, 3]


def test_a_deep_chain_is_no_recursion() -> None:
    n = 5000
    chain = DFGraph.from_nodes(cost=[1.0] * n, size=[1] * n, deps=[[], *([i] for i in range(n - 1))])
    assert lazy_sequence(chain, np.zeros(n, dtype=bool), n - 1) == [*range(n - 1), *range(n)]


def test_tensors_that_can_not_be_recomputed_are_never_dropped() -> None:
    graph = DFGraph(
        ops=(
            Op(name="once", inputs=(0,), outputs=(1,), cost=1, recomputable=False),
            Op(name="again", inputs=(1,), outputs=(2, 3), cost=1),
            Op(name="last", inputs=(1, 2, 3), outputs=(4,), cost=1),
        ),
        tensors=tuple(Tensor(name=str(t), size=1) for t in range(5)),
        inputs=(0,),
        outputs=(3, 4),
    )
    assert lazy_sequence(graph, np.zeros(5, dtype=bool), 2) == [0, 1, 1, 2]
    assert lazy_sequence(graph, np.zeros(5, dtype=bool), 3) == [0, 1, 2, 1, 2]


def test_bad_arguments_are_named() -> None:
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]])
    with pytest.raises(ValueError, match="shape"):
        lazy_sequence(graph, np.ones(2, dtype=bool), 0)
    with pytest.raises(ValueError, match="at is 2"):
        lazy_sequence(graph, np.ones(1, dtype=bool), 2)


# --- lower ------------------------------------------------------------------------------------------------


@given(graphs(max_ops=3), st.data())
def test_a_plan_is_refused_or_lowered_to_a_valid_schedule(graph: DFGraph, data: st.DataObject) -> None:
    """The schedule is valid, and has the computes of all stages in order."""
    n_stages = data.draw(st.integers(0, 3))
    likely = st.sampled_from([True, True, True, False])

    def matrix(columns: int) -> np.ndarray:
        cells = data.draw(st.lists(likely, min_size=n_stages * columns, max_size=n_stages * columns))
        return np.array(cells, dtype=bool).reshape(n_stages, columns)

    retain = matrix(graph.n_tensors)
    retain[:1] = False
    plan = Plan(graph, matrix(graph.n_ops), retain)
    try:
        schedule = lower(plan)
    except PlanError:
        event("refused")
        return
    event("lowered")
    timeline = simulate(graph, schedule)
    assert timeline.runs.tolist() == plan.compute.sum(axis=0).tolist()
    assert lower(Plan.of(graph, schedule)) == schedule


@given(graphs(), st.data())
def test_a_moment_can_be_written_as_a_stage_plan(graph: DFGraph, data: st.DataObject) -> None:
    """Its recomputation is the least for its retained tensors, if no output is made after the last op."""
    at = data.draw(st.integers(0, graph.n_ops))
    masks = st.lists(st.booleans(), min_size=graph.n_tensors, max_size=graph.n_tensors)
    keep = np.array(data.draw(masks), dtype=bool)
    plan = Plan.of(graph, Schedule.from_sequence(graph, lazy_sequence(graph, keep, at)))
    if plan.n_stages == graph.n_ops:
        assert Plan.from_retained(graph, plan.retain) == plan
    else:
        assert plan.n_stages == graph.n_ops + 1


ONCE = DFGraph(
    ops=(
        Op(name="once", inputs=(0,), outputs=(1,), cost=1, recomputable=False),
        Op(name="again", inputs=(1,), outputs=(2,), cost=1),
    ),
    tensors=tuple(Tensor(name=name, size=1) for name in ("in", "mid", "out")),
    inputs=(0,),
    outputs=(2,),
)


@pytest.mark.parametrize(
    ("compute", "retain", "message"),
    [
        ([[1, 1]], [[0, 1, 0]], "stage 0 retains tensor 1 'mid', but nothing comes before it"),
        ([[0, 0], [1, 1]], [[0, 0, 0], [0, 1, 0]], "stage 1 retains tensor 1 'mid', which stage 0 neither"),
        (
            [[1, 0], [0, 1]],
            [[0, 0, 0], [0, 0, 0]],
            "stage 1 computes op 1 'again', which reads tensor 1 'mid'",
        ),
        ([[1, 1], [1, 0]], [[0, 0, 0], [0, 0, 1]], "stage 1 computes op 0 'once' again"),
        ([[1, 1], [0, 0]], [[0, 0, 0], [0, 1, 0]], "graph output tensor 2 'out' is neither retained"),
        ([], [], "graph output tensor 2 'out'"),
    ],
)
def test_a_plan_that_cannot_be_executed_is_named(
    compute: list[list[int]], retain: list[list[int]], message: str
) -> None:
    matrices = (np.array(rows, dtype=bool).reshape(-1, n) for rows, n in ((compute, 2), (retain, 3)))
    with pytest.raises(PlanError, match=message):
        lower(Plan(ONCE, *matrices))


def test_tensors_retained_without_a_reader_are_freed_at_once() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 3, size=[1] * 3, deps=[[], [0], [1]])
    plan = Plan(graph, np.eye(3, dtype=bool), np.tri(3, k=-1, dtype=bool))
    assert list(lower(plan)) == [Compute(0), Compute(1), Free(0), Compute(2), Free(1)]

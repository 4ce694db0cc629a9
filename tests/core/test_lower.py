"""Laws of lowering: valid for whatever is kept; nothing forgotten means nothing recomputed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.graph import DFGraph, Op, Tensor
from checkmate.lower import lazy_sequence, planned_sequence
from checkmate.schedule import Schedule
from checkmate.simulate import simulate
from checkmate.testing.strategies import graphs


@given(graphs(), st.data())
def test_always_valid_and_no_op_runs_twice_after_the_moment(graph: DFGraph, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, graph.n_ops))
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=graph.n_tensors, max_size=graph.n_tensors)))
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
def test_a_plan_of_several_moments_is_valid_and_recomputes_at_most_once_between_them(
    graph: DFGraph, data: st.DataObject
) -> None:
    moments = data.draw(st.lists(st.integers(0, graph.n_ops - 1), min_size=1, max_size=3, unique=True))
    masks = st.lists(st.booleans(), min_size=graph.n_tensors, max_size=graph.n_tensors)
    plan = {at: np.array(data.draw(masks), dtype=bool) for at in moments}
    sequence = planned_sequence(graph, plan)
    assert list(dict.fromkeys(sequence)) == list(range(graph.n_ops))
    assert max(sequence.count(v) for v in range(graph.n_ops)) <= 1 + len(moments)
    simulate(graph, Schedule.from_sequence(graph, sequence))


def test_a_plan_brings_back_what_a_later_moment_gains() -> None:
    """Tensor 0 is given up at op 1 and wanted again at op 2, although only op 3 reads it."""
    graph = DFGraph.from_nodes(cost=[1] * 4, size=[1] * 4, deps=[[], [], [1], [0, 2]])
    everything = np.ones(4, dtype=bool)
    assert planned_sequence(graph, {1: ~everything, 2: everything}) == [0, 1, 0, 2, 3]
    assert planned_sequence(graph, {1: ~everything}) == [0, 1, 2, 0, 3]


def test_a_deep_chain_is_no_recursion() -> None:
    n = 5000
    chain = DFGraph.from_nodes(cost=[1.0] * n, size=[1] * n, deps=[[], *([i] for i in range(n - 1))])
    assert lazy_sequence(chain, np.zeros(n, dtype=bool), n - 1) == [*range(n - 1), *range(n)]


def test_what_cannot_come_back_is_never_forgotten() -> None:
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

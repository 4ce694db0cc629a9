"""Laws of static eviction: within the budget or no answer; the base order if it fits."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.analysis import floor, needed_ops
from checkmate.generators import chain
from checkmate.heuristics.eviction import StaticEviction
from checkmate.heuristics.paging import Weights, evicting_sequence
from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.model.schedule import Schedule
from checkmate.problem.problem import Problem, keep_all_peak
from checkmate.problem.solution import Status
from checkmate.simulate import simulate
from checkmate.testing.strategies import graphs

_WEIGHTS = st.builds(
    Weights, *[st.sampled_from([0.0, 0.5, 1.0])] * 3, stale=st.booleans(), outputs_too=st.booleans()
)


@given(st.data(), graphs(max_ops=12), _WEIGHTS)
def test_a_sequence_is_valid_within_the_budget_and_first_runs_keep_the_base_order(
    data: st.DataObject, graph: DFGraph, weights: Weights
) -> None:
    budget = data.draw(st.integers(max(1, floor(graph).size - 1), max(1, keep_all_peak(graph))))
    sequence = evicting_sequence(graph, budget, weights)
    if sequence is not None:
        assert simulate(graph, Schedule.from_sequence(graph, sequence)).peak <= budget
        assert list(dict.fromkeys(sequence)) == np.flatnonzero(needed_ops(graph)).tolist()
    assert sequence is not None or budget < keep_all_peak(graph)


@pytest.mark.parametrize("rule", ["belady", "dtr"])
def test_a_chain_is_scheduled_at_its_floor(rule: str) -> None:
    graph = chain(16)
    solution = StaticEviction(rule=rule).solve(Problem(graph=graph, budget=floor(graph).size))
    assert solution.status is Status.FEASIBLE
    assert solution.peak == floor(graph).size == 3
    below = StaticEviction(rule=rule).solve(Problem(graph=graph, budget=floor(graph).size - 1))
    assert below.status is Status.INFEASIBLE


def test_keys_are_kept_while_they_can_recompute_others() -> None:
    """A tiny seed that only the forward pass reads: without it, the large mask could never be evicted."""
    graph = DFGraph(
        ops=(
            Op(name="seed", inputs=(), outputs=(0,), cost=1, recomputable=False),
            Op(name="mask", inputs=(0,), outputs=(1,), cost=1),
            Op(name="wide", inputs=(), outputs=(2,), cost=1, workspace=8),
            Op(name="narrow", inputs=(2,), outputs=(3,), cost=1),
            Op(name="last", inputs=(1, 3), outputs=(4,), cost=1),
        ),
        tensors=tuple(Tensor(name=str(t), size=size) for t, size in enumerate([1, 8, 8, 1, 1])),
        outputs=(4,),
    )
    assert keep_all_peak(graph) == 24
    assert evicting_sequence(graph, 17) == [0, 1, 2, 3, 1, 4]


def test_a_key_unlocks_through_dead_tensors() -> None:
    """As before, with a tensor between seed and mask that no op reads any more when memory is short."""
    graph = DFGraph(
        ops=(
            Op(name="seed", inputs=(), outputs=(0,), cost=1, recomputable=False),
            Op(name="bits", inputs=(0,), outputs=(1,), cost=1),
            Op(name="mask", inputs=(1,), outputs=(2,), cost=1),
            Op(name="wide", inputs=(), outputs=(3,), cost=1, workspace=8),
            Op(name="narrow", inputs=(3,), outputs=(4,), cost=1),
            Op(name="last", inputs=(2, 4), outputs=(5,), cost=1),
        ),
        tensors=tuple(Tensor(name=str(t), size=size) for t, size in enumerate([1, 1, 8, 8, 1, 1])),
        outputs=(5,),
    )
    assert evicting_sequence(graph, 17) == [0, 1, 2, 3, 4, 1, 2, 5]


def _wide_moment(n: int) -> DFGraph:
    """A chain of n ops, one op that leaves room for half of their outputs, and one that reads all of them."""
    return DFGraph(
        ops=(
            *(Op(name=str(i), inputs=(i - 1,) if i else (), outputs=(i,), cost=1) for i in range(n)),
            Op(name="wide", inputs=(n - 1,), outputs=(n,), cost=1, workspace=n),
            *(Op(name=f"{i}.backward", inputs=(n, i), outputs=(n + 1 + i,), cost=1) for i in range(n)),
        ),
        tensors=tuple(Tensor(name=str(t), size=1) for t in range(2 * n + 1)),
        outputs=(2 * n,),
    )


def test_the_clock_is_looked_at_between_evictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One op may evict the outputs of all ops before it: the deadline is checked in between."""
    looks = itertools.count()
    monkeypatch.setattr("checkmate.problem.deadline.time", SimpleNamespace(monotonic=lambda: next(looks)))
    n = 100
    sequence = evicting_sequence(_wide_moment(n), n + n // 2)
    assert sequence is not None
    assert next(looks) >= len(sequence) + n // 2

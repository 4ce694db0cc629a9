"""The problems that the laws of solvers are tried on, from tiny graphs to one of 300 ops.

At most budgets of tiny graphs a simple rule is optimal, and a solver that claims so without a proof is right.
Hard problems have long tensors, near ties and outliers among the costs, and every trait of ops. Their budget
is one at which the built-in heuristics miss the optimum, or the tightest: there a wrong proof is rarely true
by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from hypothesis import strategies as st

from checkmate.analysis import floor
from checkmate.heuristics import BestHeuristic
from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.problem.problem import Problem, keep_all_peak
from checkmate.testing.oracle import optimum
from checkmate.testing.strategies import branches, dressed, graphs, problems, training_steps

__all__ = [
    "LONG_LIMIT_S",
    "OPS",
    "TIME_LIMIT_S",
    "hard_problems",
    "large_step",
    "larger_problems",
    "of_every_size",
    "problems_of_any_size",
]

TIME_LIMIT_S = 5.0
LONG_LIMIT_S = 1.0
"""Time limit of the longest graphs."""
OPS = (300, 100, 40)
"""Sizes of the graphs whose answers must come in time."""


_BUDGETS = 8
"""Number of budgets of a graph that are tried."""
_COSTS: tuple[Sequence[int], ...] = (range(1, 5), range(200, 204), (1, 1, 1, 30), range(1, 1000))
"""Ranges to draw costs from: small numbers, near ties, a few outliers, and no ties."""


def larger_problems(*, fixed_order: bool | None = None) -> st.SearchStrategy[Problem]:
    """Graphs of 9 to 20 ops, more than the oracle checks in full."""
    source = st.one_of(graphs(min_ops=9, max_ops=16), training_steps(min_layers=5, max_layers=10))
    return problems(source, fixed_order=fixed_order, time_limit=TIME_LIMIT_S)


def problems_of_any_size() -> st.SearchStrategy[Problem]:
    """Tiny and larger ones."""
    return st.one_of(problems(time_limit=TIME_LIMIT_S), larger_problems())


def of_every_size(*, fixed_order: bool | None = None) -> list[tuple[st.SearchStrategy[Problem], float]]:
    """Tiny graphs, hard ones, graphs of up to 20 ops and of up to 60, with several seeds and 1 or 2 threads.

    Returns:
        each strategy, and its number of examples as a multiple of a check's number.
    """
    tiny = problems(fixed_order=fixed_order, time_limit=TIME_LIMIT_S)
    hard = hard_problems(fixed_order=fixed_order, time_limit=TIME_LIMIT_S)
    steps = training_steps(min_layers=12, max_layers=30)
    long = problems(steps, fixed_order=fixed_order, time_limit=LONG_LIMIT_S)
    return [
        (_asked(tiny, st.just(1)), 0.5),
        (_asked(hard, st.sampled_from([1, 2])), 1.5),
        (_asked(larger_problems(fixed_order=fixed_order), st.sampled_from([1, 2])), 0.25),
        (_asked(long, st.just(1)), 0.1),
    ]


@st.composite
def _asked(draw: st.DrawFn, source: st.SearchStrategy[Problem], threads: st.SearchStrategy[int]) -> Problem:
    return replace(draw(source), seed=draw(st.sampled_from([0, 1, 7])), threads=draw(threads))


def large_step(n_ops: int) -> DFGraph:
    """A chain with mirrored backward, of an even number of ops; sizes 1 to 4, costs 1 to 5."""
    layers = n_ops // 2
    forward = [[i - 1] if i else [] for i in range(layers)]
    return DFGraph.from_nodes(
        cost=[1 + 7 * i % 5 for i in range(n_ops)],
        size=[1 + 5 * i % 4 for i in range(n_ops)],
        deps=forward + [[j - 1, n_ops - 1 - j] for j in range(layers, n_ops)],
        backward=[i >= layers for i in range(n_ops)],
    )


@st.composite
def hard_problems(draw: st.DrawFn, *, fixed_order: bool | None = None, time_limit: float = 10.0) -> Problem:
    """Graphs of 7 to 12 ops, small enough for the oracle.

    The budget is one of eight: where heuristics miss the optimum by most, or by least, or the tightest.
    """
    steps = training_steps(min_layers=4, max_layers=6)
    graph = draw(_priced(st.one_of(steps, dressed(steps), dressed(branches()), *[_local_graphs()] * 2)))
    in_order = draw(st.booleans()) if fixed_order is None else fixed_order
    low, high = max(1, floor(graph).size), max(1, keep_all_peak(graph))
    problem = Problem(graph=graph, budget=high, fixed_order=in_order, time_limit=time_limit)
    asked = [replace(problem, budget=low + (high - low) * i // _BUDGETS) for i in range(_BUDGETS)]
    tightest = next((one for one in asked if math.isfinite(optimum(one))), problem)
    missed = sorted((one for one in asked if _miss(one) > 1.0), key=_miss) or [tightest]
    return draw(st.sampled_from([missed[-1], missed[0], tightest]))


@lru_cache(maxsize=4096)
def _miss(problem: Problem) -> float:
    """Cost of the best heuristic's schedule relative to the optimum; infinite if it finds none.

    It is 1 if there is no schedule.
    """
    found, best = BestHeuristic().solve(problem).cost, optimum(problem)
    return found / best if 0.0 < best < found else 1.0


@st.composite
def _priced(draw: st.DrawFn, source: st.SearchStrategy[DFGraph]) -> DFGraph:
    """Graphs of ``source``, most with other costs, and some with sizes of three digits."""
    graph = draw(source)
    if costs := draw(st.sampled_from([(), *_COSTS])):
        ops = tuple(replace(op, cost=draw(st.sampled_from(costs))) for op in graph.ops)
        graph = replace(graph, ops=ops)
    if draw(st.integers(0, 3)) == 0:
        tensors = tuple(replace(t, size=200 * t.size + draw(st.integers(0, 9))) for t in graph.tensors)
        ops = tuple(replace(op, workspace=200 * op.workspace) for op in graph.ops)
        graph = replace(graph, tensors=tensors, ops=ops)
    return graph


@st.composite
def _local_graphs(draw: st.DrawFn) -> DFGraph:
    """Graphs of 7 to 12 ops, each of which reads one of the last three tensors, and perhaps an older one.

    Each trait of ops occurs in a third of the graphs. A tensor that no op reads is a graph output, except in
    graphs with needless ops.
    """
    several, works, once, reuses, needless = (draw(st.integers(0, 2)) == 0 for _ in range(5))
    n_ops = draw(st.integers(7, 12))
    turn = draw(st.sampled_from([n_ops, n_ops // 2]))
    ops: list[Op] = []
    made: list[int] = []
    for i in range(n_ops):
        read = _reads(draw, made, reuses)
        outputs = tuple(range(len(made), len(made) + (draw(st.integers(1, 2)) if several else 1)))
        ops.append(
            Op(
                name=f"op{i}",
                inputs=read,
                outputs=outputs,
                cost=draw(st.integers(1, 4)),
                workspace=draw(st.integers(0, 3)) if works else 0,
                recomputable=not (once and draw(st.integers(0, 4)) == 0),
                reuses=read if reuses and draw(st.booleans()) else (),
                backward=i >= turn,
            )
        )
        made += outputs
    unread = sorted(set(made) - {t for op in ops for t in op.inputs})
    kept = [t for t in unread if not (needless and draw(st.booleans()))] or unread[-1:]
    tensors = tuple(Tensor(name=f"t{t}", size=draw(st.integers(1, 6))) for t in made)
    return DFGraph(ops=tuple(ops), tensors=tensors, outputs=tuple(kept))


def _reads(draw: st.DrawFn, made: Sequence[int], two: bool) -> tuple[int, ...]:
    """What an op reads of the tensors made so far: mostly a recent one, and perhaps another."""
    if not made or draw(st.integers(0, 7)) == 0:
        return ()
    read = {draw(st.sampled_from(made[-3:]))}
    if two or draw(st.booleans()):
        read.add(draw(st.sampled_from(made[-4:] if two else made)))
    return tuple(sorted(read))

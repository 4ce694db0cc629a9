"""The problems that the laws of solvers are tried on, from tiny graphs to one of 300 ops."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from hypothesis import strategies as st

from checkmate.analysis import floor
from checkmate.graph import DFGraph
from checkmate.heuristics import BestHeuristic
from checkmate.problem import Problem, keep_all_peak
from checkmate.testing.oracle import optimum
from checkmate.testing.strategies import dressed, graphs, problems, training_steps

__all__ = [
    "LONG_LIMIT_S",
    "MANY_OPS",
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
MANY_OPS = 300
_BUDGETS = 8
"""How many budgets of a graph are tried in search of a hard one."""


@st.composite
def hard_problems(draw: st.DrawFn, *, fixed_order: bool | None = None) -> Problem:
    """Training steps of 8 to 12 ops at the budget, of eight, where the heuristics miss the optimum by most.

    At most budgets of tiny graphs a simple rule is optimal. Then a solver that calls the schedule of a rule
    optimal, or its cost a bound, tells the truth.
    """
    steps = training_steps(min_layers=4, max_layers=6)
    graph = draw(st.one_of(steps, dressed(steps)))
    in_order = draw(st.booleans()) if fixed_order is None else fixed_order
    low, high = max(1, floor(graph).size), max(1, keep_all_peak(graph))
    asked = Problem(graph=graph, budget=low, fixed_order=in_order, time_limit=TIME_LIMIT_S)
    budgets = (low + (high - low) * i // _BUDGETS for i in range(_BUDGETS))
    return max((replace(asked, budget=budget) for budget in budgets), key=_miss)


@lru_cache(maxsize=4096)
def _miss(problem: Problem) -> float:
    """Cost of the best heuristic's schedule relative to the optimum; infinite if it finds none."""
    best = optimum(problem)
    return BestHeuristic().solve(problem).cost / best if 0 < best < math.inf else 0.0


def larger_problems(*, fixed_order: bool | None = None) -> st.SearchStrategy[Problem]:
    """Graphs of 9 to 20 ops, more than the oracle checks in full."""
    source = st.one_of(graphs(min_ops=9, max_ops=16), training_steps(min_layers=5, max_layers=10))
    return problems(source, fixed_order=fixed_order, time_limit=TIME_LIMIT_S)


def problems_of_any_size() -> st.SearchStrategy[Problem]:
    """Tiny and larger ones."""
    return st.one_of(problems(time_limit=TIME_LIMIT_S), larger_problems())


def of_every_size(*, fixed_order: bool | None = None) -> list[tuple[st.SearchStrategy[Problem], int]]:
    """Tiny graphs, hard ones, graphs of up to 20 ops and of up to 60, with several seeds and 1 or 2 threads.

    Returns:
        strategies, and for each how many times fewer examples than of the first should be drawn.
    """
    tiny = problems(fixed_order=fixed_order, time_limit=TIME_LIMIT_S)
    steps = training_steps(min_layers=12, max_layers=30)
    long = problems(steps, fixed_order=fixed_order, time_limit=LONG_LIMIT_S)
    return [
        (_asked(tiny, st.just(1)), 1),
        (_asked(hard_problems(fixed_order=fixed_order), st.just(1)), 4),
        (_asked(larger_problems(fixed_order=fixed_order), st.sampled_from([1, 2])), 4),
        (_asked(long, st.just(1)), 10),
    ]


@st.composite
def _asked(draw: st.DrawFn, source: st.SearchStrategy[Problem], threads: st.SearchStrategy[int]) -> Problem:
    return replace(draw(source), seed=draw(st.sampled_from([0, 1, 7])), threads=draw(threads))


def large_step() -> DFGraph:
    """A chain with mirrored backward; sizes 1 to 4, costs 1 to 5."""
    layers = MANY_OPS // 2
    forward = [[i - 1] if i else [] for i in range(layers)]
    return DFGraph.from_nodes(
        cost=[1 + 7 * i % 5 for i in range(MANY_OPS)],
        size=[1 + 5 * i % 4 for i in range(MANY_OPS)],
        deps=forward + [[j - 1, MANY_OPS - 1 - j] for j in range(layers, MANY_OPS)],
        backward=[i >= layers for i in range(MANY_OPS)],
    )

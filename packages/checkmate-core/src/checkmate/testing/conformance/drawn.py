"""The problems that the laws of solvers are tried on, from tiny graphs to one of 300 ops."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from checkmate.model.graph import DFGraph
from checkmate.problem.problem import Problem
from checkmate.testing.conformance.hard import hard_problems
from checkmate.testing.strategies import graphs, problems, training_steps

__all__ = [
    "LONG_LIMIT_S",
    "OPS",
    "TIME_LIMIT_S",
    "large_step",
    "larger_problems",
    "of_every_size",
    "problems_of_any_size",
]

TIME_LIMIT_S = 5.0
LONG_LIMIT_S = 1.0
"""Time limit of the longest graphs."""
OPS = (300, 100, 40)
"""Of the graphs whose answers must come in time."""


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
        strategies, and how many examples of each should be drawn, relative to those of a check.
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

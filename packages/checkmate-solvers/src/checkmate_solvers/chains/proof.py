r"""Binomial checkpointing as a lower bound on the cost of every schedule of a chain.

Put a pebble on i while anything of state x_i is resident. Only a run of f_i puts one on i, and it needs one
on i − 1. In the backward pass ops read x_p, then x_{p−1}, … x_1; let c be the least number such that some
reads certainly come in this order, each with room for at most c of the states up to the one that it reads. To
visit p, p − 1 … 1, with a pebble on each and no more than c when it is visited, takes at least t(p + 1, c)
placements, the number of :func:`~checkmate_solvers.chains.revolve.forward_steps`: no way to reverse a program
has fewer (Grimm, Pottier, Rostaing-Schmidt, "Optimal time and minimum space-time product for reversing a
certain class of programs", 1996; the tests count all ways for short rows). Each placement costs at least as
much as the cheapest f_i.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from checkmate import Problem
from checkmate.analysis import working_sets
from checkmate_solvers.chains.revolve import forward_steps
from checkmate_solvers.chains.structure import Chain, recognise

__all__ = ["binomial_bound"]

_ROUNDING = 2.0**-48
"""Relative error that sums of costs may have; generous."""


def binomial_bound(problem: Problem) -> float:
    """Lower bound on the cost of all recomputation; 0 if the graph is no chain.

    It is attained where all layers are equal, and weak where they are not.

    >>> from checkmate.generators import chain
    >>> binomial_bound(Problem(graph=chain(8), budget=4))
    9.0
    """
    chain = recognise(problem.graph)
    if isinstance(chain, str):
        return 0.0
    graph, p, fitting = problem.graph, chain.length, _fitting(problem, chain)

    def are_visited(slots: int) -> bool:
        """Whether reads with room for at most ``slots`` states certainly come in the order x_p … x_1."""
        visited: dict[int, int] = {}  # the last state that is visited for certain once an op has run
        i = p + 1
        for v, counts in fitting.items():
            if not problem.fixed_order:
                makers = graph.producer[list(graph.ops[v].inputs)].tolist()
                i = min((visited.get(u, p + 1) for u in makers), default=p + 1)
            while counts.get(i - 1, p) <= slots:
                i -= 1
            visited[v] = i
        return 1 in visited.values()

    slots = 1 + bisect_left(range(1, p), True, key=are_visited)
    if slots == p:
        return 0.0
    extra = float((forward_steps(p + 1, slots) - p) * min(graph.ops[v].cost for v in chain.forward))
    return extra if extra.is_integer() else max(extra - _ROUNDING * (extra + graph.ideal_cost), 0.0)


def _fitting(problem: Problem, chain: Chain) -> dict[int, dict[int, int]]:
    """For each backward op, and each state x_i that it reads: how many of x_1 … x_i have room then."""
    graph, working = problem.graph, working_sets(problem.graph)
    layer = {t: i for i, state in enumerate(chain.states) for t in state}
    sizes = np.array([graph.sizes[list(state)].min() for state in chain.states[1:]])
    order = np.argsort(sizes)
    fitting: dict[int, dict[int, int]] = {}
    for v in chain.order[chain.length :]:
        inputs = list(graph.ops[v].inputs)
        in_row = graph.sizes[[t for t in inputs if 0 <= graph.producer[t] <= chain.forward[-1]]].sum()
        room = problem.budget - working[v] + in_row
        fitting[v] = {
            i: int(np.searchsorted(np.cumsum(sizes[order[order < i]]), room, side="right"))
            for i in {layer[t] for t in inputs if t in layer}
        }
    return fitting

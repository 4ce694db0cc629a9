r"""Binomial checkpointing as a lower bound on the cost of every schedule of a chain.

Put a pebble on i while anything of state x_i is resident. A run of f_i, and nothing else, puts one on i, and
needs one on i − 1. In the backward pass ops read x_p, then x_{p−1}, … x_1; let c be the most states up to x_i
for which there is room while such an op reads x_i. To visit p, p − 1 … 1, with a pebble on each and no more
than c when it is visited, takes at least t(p + 1, c) placements, the number of
:func:`~checkmate_solvers.chains.revolve.forward_steps`: no way to reverse a program has fewer (Grimm,
Pottier, Rostaing-Schmidt, "Optimal time and minimum space-time product for reversing a certain class of
programs", 1996; the tests count all ways for short rows). Each costs at least as much as the cheapest f_i.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from checkmate import DFGraph, Problem
from checkmate_solvers.chains.revolve import forward_steps
from checkmate_solvers.chains.structure import Chain, NoChain, recognise

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
    if isinstance(chain, NoChain):
        return 0.0
    graph, p = problem.graph, chain.length
    slots = min(_slots(problem, chain, visits) for visits in _visits(chain))
    if not 0 < slots < p:  # with none, a visit is impossible: other bounds prove that
        return 0.0
    extra = float((forward_steps(p + 1, slots) - p) * min(graph.ops[v].cost for v in chain.forward))
    return extra if extra.is_integer() else max(extra - _ROUNDING * (extra + graph.ideal_cost), 0.0)


def _visits(chain: Chain) -> Iterator[list[int]]:
    """For each state x_1 … x_p the first op outside the row that reads it, if any; then the last ones."""
    readers: list[list[int]] = [[] for _ in chain.graph.tensors]
    for v in sorted(itertools.chain.from_iterable(chain.blocks)):
        for t in chain.graph.ops[v].inputs:
            readers[t].append(v)
    reading = [[v for t in state for v in readers[t]] for state in chain.states[1:]]
    for choice in (min, max):
        yield [choice(ops) for ops in reading if ops]


def _slots(problem: Problem, chain: Chain, visits: list[int]) -> int:
    """The most states that fit at any visit; all of them if the order of visits is not certain."""
    certain = len(visits) == chain.length
    for a, b in itertools.pairwise(reversed(visits)):
        certain = certain and (a == b or (a < b and (problem.fixed_order or _leads(problem.graph, a, b))))
    if not certain:
        return chain.length
    sizes = np.array([problem.graph.sizes[list(state)].min() for state in chain.states[1:]])
    order = np.argsort(sizes)
    ascending = sizes[order]
    most = 0
    for i, at in enumerate(visits, start=1):
        held = np.cumsum(ascending[order < i])
        most = max(most, int(np.searchsorted(held, _room(problem, chain, at), side="right")))
    return most


def _leads(graph: DFGraph, a: int, b: int) -> bool:
    """Whether op ``b`` needs op ``a``."""
    stack, seen = [b], {b}
    while stack and a not in seen:
        sources = {int(graph.producer[t]) for t in graph.ops[stack.pop()].inputs}
        fresh = {v for v in sources if v >= a} - seen
        seen |= fresh
        stack += fresh
    return a in seen


def _room(problem: Problem, chain: Chain, at: int) -> int:
    """Bytes for states, those that the op reuses included, beside its outputs, workspace and other inputs."""
    graph, op = problem.graph, problem.graph.ops[at]
    made_in_row = chain.forward[-1]
    others = [t for t in op.inputs if graph.producer[t] > made_in_row]
    needs = op.workspace + sum(int(graph.sizes[t]) for t in (*op.outputs, *others))
    needs -= int(graph.sizes[graph.reuses.row(at)].sum())
    return problem.budget - graph.base_size - needs

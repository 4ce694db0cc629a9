"""Lower bounds on the least budget, from small parts of a graph.

Take any schedule, and leave out the runs of all but a few ops: what remains is a schedule of these ops alone,
of their *part* of the graph, and holds no more bytes. In a part, a tensor that another op makes is
workspace of the ops that read it. For a dozen ops, exhaustive search finds whether any schedule of the part
fits a budget. If none does, no schedule of the whole graph does. The floor (:func:`checkmate.floor`) is this
bound for parts of one op; a larger part shows that some inputs of an op are held while others are computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from checkmate import DFGraph, Op, Problem, Tensor, floor
from checkmate.analysis import needed_ops, working_sets
from checkmate.solving import NEVER, Deadline
from checkmate_solvers.exhaustive import exhaust

__all__ = ["is_infeasible", "least_peak_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Which parts are searched, and how long."""

    centres: int = 60  # ops with the largest working sets, around which parts grow
    ops: int = 12  # of a part, at most
    states: int = 5_000  # of one search, at most
    step: float = 1 / 256  # relative step from one budget for which a part is searched to the next


_SETTINGS = _Settings()


def is_infeasible(problem: Problem, *, deadline: Deadline = NEVER) -> bool:
    """Whether a part of the graph proves, before the deadline, that no schedule fits the budget."""
    graph, budget, fixed_order = problem.graph, problem.budget, problem.fixed_order
    return any(not _may_fit(part, budget, fixed_order, deadline) for part in _parts(graph, deadline))


def least_peak_bound(graph: DFGraph, *, fixed_order: bool = False, deadline: Deadline = NEVER) -> int:
    """A proved lower bound on the peak of every schedule, in bytes; at least the floor.

    With ``fixed_order``, only schedules whose first runs keep the base order count.

    >>> graph = DFGraph.from_nodes(cost=[1] * 5, size=[4, 4, 4, 4, 1], deps=[[], [0], [], [2], [1, 3]])
    >>> floor(graph).size, least_peak_bound(graph)
    (9, 12)
    """
    bound = floor(graph).size
    for part in _parts(graph, deadline):
        budget = bound
        while not _may_fit(part, budget, fixed_order, deadline):
            bound = budget + 1  # no more is proved
            budget = max(bound, math.floor(bound * (1 + _SETTINGS.step)))
    return bound


def _may_fit(part: DFGraph, budget: int, fixed_order: bool, deadline: Deadline) -> bool:
    """Whether a schedule of the part may fit the budget, as far as a short search can tell."""
    problem = Problem(graph=part, budget=max(budget, 1), fixed_order=fixed_order)
    return math.isfinite(exhaust(problem, any_cost=True, states=_SETTINGS.states, deadline=deadline).bound)


def _parts(graph: DFGraph, deadline: Deadline) -> Iterator[DFGraph]:
    """Parts of the graph, each once, around the ops with the largest working sets."""
    shared = _shared_bytes(graph)
    needed = np.flatnonzero(needed_ops(graph))
    crowded = needed[np.argsort(-working_sets(graph)[needed], kind="stable")]
    seen: set[frozenset[int]] = set()
    for centre in crowded[: _SETTINGS.centres].tolist():
        if deadline.passed:
            return
        ops, near = frozenset[int](), Counter({centre: 0})
        while near and len(ops) < _SETTINGS.ops:
            nearest = max(near, key=lambda v: (near[v], -v))
            ops |= {nearest}
            near.update(shared[nearest])
            for v in ops:
                del near[v]
            if ops not in seen:
                seen.add(ops)
                yield _part(graph, sorted(ops))


def _shared_bytes(graph: DFGraph) -> list[Counter[int]]:
    """For each needed op, the bytes that pass between it and each other needed op, in either direction."""
    shared = [Counter[int]() for _ in graph.ops]
    for v in np.flatnonzero(needed_ops(graph)).tolist():
        for t in graph.ops[v].inputs:
            if (maker := int(graph.producer[t])) >= 0:
                shared[v][maker] += graph.tensors[t].size
                shared[maker][v] += graph.tensors[t].size
    return shared


def _part(graph: DFGraph, ops: list[int]) -> DFGraph:
    """The graph of these ops; each also makes an output of no bytes, so that it has to run."""
    ids: dict[int, int] = {}
    tensors: list[Tensor] = []
    outputs: list[int] = []
    inside: list[Op] = []
    for v in ops:
        op, reuses = graph.ops[v], set(graph.reuses.row(v).tolist())
        others = {t for t in op.inputs if t not in ids and graph.producer[t] >= 0}
        ids |= {t: len(tensors) + i for i, t in enumerate(op.outputs)}
        tensors += [*(graph.tensors[t] for t in op.outputs), Tensor(name=f"{op.name} ran", size=0)]
        made = range(len(tensors) - len(op.outputs) - 1, len(tensors))
        outputs += [*(ids[t] for t in op.outputs if t in graph.outputs), made[-1]]
        inside.append(
            replace(
                op,
                inputs=tuple(ids[t] for t in op.inputs if t in ids),
                outputs=tuple(made),
                workspace=op.workspace + sum(graph.tensors[t].size for t in others - reuses),
                reuses=tuple(ids[t] for t in reuses if t in ids),
            )
        )
    return DFGraph(
        ops=tuple(inside), tensors=tuple(tensors), outputs=tuple(outputs), fixed_size=graph.base_size
    )

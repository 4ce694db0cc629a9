"""Equivalent problems: with other names, another unit of bytes, another order of the list; and similar ones.

Schedules of an equivalent problem are schedules of the original one, up to renumbering.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from checkmate.analysis import floor
from checkmate.model.graph import DFGraph, Op
from checkmate.problem.problem import Problem, keep_all_peak

__all__ = ["asked_in_turn", "copied", "names", "random_order", "renamed", "reordered", "scaled"]

names = st.sampled_from(
    ["", "a", "a", "loss", "dropout", "conv1/backward", "grad", "0", "ὕλη", "x" * 80, "a\nb"]
)
"""Names that a solver might interpret, or fail on."""


def copied(problem: Problem) -> Problem:
    """The same problem with a copy of the graph, without derived arrays."""
    return replace(problem, graph=replace(problem.graph))


def renamed(problem: Problem, labels: Sequence[str]) -> Problem:
    """The same problem with other names of the graph, its ops and its tensors, ``labels`` in turn."""
    graph, k = problem.graph, len(labels)
    ops = tuple(replace(op, name=labels[i % k]) for i, op in enumerate(graph.ops))
    tensors = tuple(replace(t, name=labels[(i + len(ops)) % k]) for i, t in enumerate(graph.tensors))
    return replace(problem, graph=replace(graph, ops=ops, tensors=tensors, name=labels[0]))


def scaled(problem: Problem, factor: int) -> Problem:
    """The same problem with every number of bytes ``factor`` times as large, the budget included."""
    graph = problem.graph
    return replace(
        problem,
        budget=problem.budget * factor,
        graph=replace(
            graph,
            ops=tuple(replace(op, workspace=op.workspace * factor) for op in graph.ops),
            tensors=tuple(replace(t, size=t.size * factor) for t in graph.tensors),
            fixed_size=graph.fixed_size * factor,
        ),
    )


def asked_in_turn(problem: Problem) -> Iterator[Problem]:
    """A problem, and similar ones that a solver may confuse with it: a sibling, and one in a free order.

    The latter only if the problem fixes the order.
    """
    yield problem
    yield _sibling(problem)
    if problem.fixed_order:
        yield replace(problem, fixed_order=False)


def _sibling(problem: Problem) -> Problem:
    """A problem of the same structure, in which each op and tensor has the numbers of the one before it."""
    graph = problem.graph
    ops = tuple(
        replace(op, cost=graph.ops[i - 1].cost, workspace=graph.ops[i - 1].workspace)
        for i, op in enumerate(graph.ops)
    )
    tensors = tuple(replace(t, size=graph.tensors[i - 1].size) for i, t in enumerate(graph.tensors))
    other = replace(graph, ops=ops, tensors=tensors)
    low, high = _budgets(graph)
    share = (problem.budget - low) / max(high - low, 1)
    low, high = _budgets(other)
    return replace(problem, graph=other, budget=max(1, low + int(share * (high - low))))


def _budgets(graph: DFGraph) -> tuple[int, int]:
    """The least budget that may be enough, and one that is."""
    return max(floor(graph).size, 1), max(keep_all_peak(graph), 1)


def reordered(problem: Problem, order: Sequence[int]) -> Problem:
    """The same problem with its ops in another valid order, and its tensors in the order of appearance."""
    graph = problem.graph
    ops = [graph.ops[i] for i in order]
    tensors = [*sorted(graph.inputs, reverse=True), *(t for op in ops for t in op.outputs)]
    number = {t: i for i, t in enumerate(tensors)}

    def moved(op: Op) -> Op:
        rows = (op.inputs, op.outputs, op.reuses)
        inputs, outputs, reuses = (tuple(number[t] for t in row) for row in rows)
        return replace(op, inputs=inputs, outputs=outputs, reuses=reuses)

    moved_graph = replace(
        graph,
        ops=tuple(map(moved, ops)),
        tensors=tuple(graph.tensors[t] for t in tensors),
        inputs=tuple(number[t] for t in graph.inputs),
        outputs=tuple(number[t] for t in graph.outputs),
    )
    return replace(problem, graph=moved_graph)


@st.composite
def random_order(draw: st.DrawFn, graph: DFGraph) -> list[int]:
    """A valid order of the ops; shrinks towards the base order."""
    producer = graph.producer.tolist()
    waits = [{producer[t] for t in op.inputs if producer[t] >= 0} for op in graph.ops]
    order: list[int] = []
    while len(order) < graph.n_ops:
        ready = [v for v in range(graph.n_ops) if v not in order and waits[v].issubset(order)]
        order.append(draw(st.sampled_from(ready)))
    return order

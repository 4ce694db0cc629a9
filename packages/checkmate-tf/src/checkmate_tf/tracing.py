"""From TensorFlow's ops to the graph that is planned.

    op of the graph = a *group* of heavy ops: one, and before it those of its producers that nobody else asks

A producer joins where TensorFlow writes the result over what it made, for then both need one buffer; and
where it only prepares an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import tensorflow as tf

from checkmate import DFGraph, Op, Tensor
from checkmate_tf.capture import Captured
from checkmate_tf.reading import SMALL, Buffer, Heavy, Reading, read
from checkmate_tf.storages import calls_functions, is_elementwise, nbytes, takes_over

__all__ = ["TracedGraph", "trace"]

_CLOSE = 4
"""How many heavy ops on, at most, an op that writes over another one's output may stand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedGraph:
    """A step as a graph of Checkmate, and how it corresponds to TensorFlow's ops.

    Attributes:
        captured: the ops.
        graph: without costs and workspaces.
        groups: the heavy ops of each op of the graph, in order.
        tensor_of: the tensor of the graph that each buffer is.
        writes: op of the graph that updates variables → the versions that it overwrites; none of small ones.
        in_sequence: ops of the graph whose runs must keep their order.
        reads_before: heavy op → light reads that must have been made when it runs.
        branches: name of an op → its branches.
    """

    captured: Captured
    graph: DFGraph
    groups: tuple[tuple[tf.Operation, ...], ...]
    tensor_of: Mapping[Buffer, int]
    writes: Mapping[int, tuple[int, ...]]
    in_sequence: tuple[int, ...]
    reads_before: Mapping[str, Sequence[tf.Operation]]
    branches: Mapping[str, tuple[TracedGraph, ...]]

    @property
    def heavy(self) -> Iterator[tf.Operation]:
        """The heavy ops, and those of their branches."""
        for op in (op for group in self.groups for op in group):
            yield op
            for branch in self.branches.get(op.name, ()):
                yield from branch.heavy


def trace(captured: Captured, *, name: str = "") -> TracedGraph:
    """The graph of a captured step, its costs 0, its updates where they were traced."""
    reading = read(captured.ops, captured.outputs)
    returned = dict.fromkeys(b for t in captured.outputs for b in reading.needed(t))
    groups = _results_first(_grouped(reading.heavy, returned), returned)
    return _traced(captured, reading, groups, returned, name)


def _traced(
    captured: Captured,
    reading: Reading,
    groups: Sequence[Sequence[Heavy]],
    returned: Mapping[Buffer, None],
    name: str,
) -> TracedGraph:
    arguments = {Buffer(t.op.name, "output", 0): nbytes(t) for t in captured.inputs if t.dtype != tf.resource}
    versions = {Buffer(handle, "version", 0): size for handle, size in reading.variables.items()}
    tensors = [Tensor(name=b.maker, size=size) for b, size in (arguments | versions).items()]
    tensor_of = {b: t for t, b in enumerate(arguments | versions)}
    inputs = range(len(tensors))
    ops: list[Op] = []
    outputs: list[int] = []
    for group in groups:
        inside = {b for h in group for b in h.makes}
        made = {b: size for h in group[:-1] for b, size in h.makes.items() if b.kind != "output"}
        made |= group[-1].makes
        for b, size in made.items():
            tensor_of[b] = len(tensors)
            if b in returned or b.kind != "output":
                outputs.append(len(tensors))
            tensors.append(Tensor(name=_label(b), size=size))
        reads = dict.fromkeys(b for h in group for b in h.reads if b not in inside)
        ops.append(
            Op(
                name=group[-1].op.name,
                inputs=tuple(tensor_of[b] for b in reads),
                outputs=tuple(tensor_of[b] for b in made),
                cost=0,
                recomputable=not any(h.once for h in group),
            )
        )
    ops = _with_passes(
        ops,
        [
            tensor_of[b]
            for t in captured.outputs
            if t.shape.rank == 0
            for b in reading.needed(t)
            if b.kind != "done"  # whatever is returned waits for all effects
        ],
    )
    constants = sum(nbytes(op.outputs[0]) for op in captured.ops if op.type == "Const")
    graph = DFGraph(
        ops=tuple(ops),
        tensors=tuple(tensors),
        inputs=tuple(inputs),
        outputs=tuple(dict.fromkeys(outputs)),
        fixed_size=constants,
        name=name,
    )
    return TracedGraph(
        captured=captured,
        graph=graph,
        groups=tuple(tuple(h.op for h in group) for group in groups),
        tensor_of=tensor_of,
        writes={
            v: tuple(t for h in group for b in h.overwrites if (t := tensor_of[b]) not in ops[v].outputs)
            for v, group in enumerate(groups)
            if any(b.kind == "version" for h in group for b in h.makes)
        },
        in_sequence=tuple(v for v, group in enumerate(groups) if any(h.in_sequence for h in group)),
        reads_before=reading.reads_before,
        branches={op: tuple(map(trace, found)) for op, found in captured.branches.items()},
    )


def _with_passes(ops: Sequence[Op], scalars: Sequence[int]) -> list[Op]:
    """The ops, those marked as backward that the returned scalars, the loss and the like, don't need."""
    if not scalars:
        return list(ops)
    needed = set(scalars)
    found: list[Op] = []
    for op in reversed(ops):
        forward = bool(needed & set(op.outputs))
        if forward:
            needed.update(op.inputs)
        found.append(op if forward else replace(op, backward=True))
    return found[::-1]


def _results_first(groups: list[list[Heavy]], returned: Mapping[Buffer, None]) -> list[list[Heavy]]:
    """The groups in an order in which what is returned, but for what updates make, comes before all else.

    Metrics may be traced after the updates. An update would then have to wait for them, and so all gradients:
    for a metric asks for what the model computes, which may be computed again.
    """
    maker = {b: k for k, group in enumerate(groups) for h in group for b in h.makes}
    needs = [{maker[b] for h in group for b in h.reads if b in maker} - {k} for k, group in enumerate(groups)]
    updated: set[int] = set()
    for k, group in enumerate(groups):
        if needs[k] & updated or any(h.overwrites for h in group):
            updated.add(k)
    in_sequence = [k for k, group in enumerate(groups) if any(h.in_sequence for h in group)]
    for j, k in pairwise(in_sequence):
        needs[k].add(j)
    read = [maker[b] for b in returned if b in maker and b.kind != "done"]  # all effects are waited for
    stack = [k for k in read if k not in updated]
    first: set[int] = set()
    while stack:
        k = stack.pop()
        if k not in first:
            first.add(k)
            stack.extend(needs[k])
    return [groups[k] for k in sorted(range(len(groups)), key=lambda k: (k not in first, k))]


def _label(b: Buffer) -> str:
    if b.kind == "output":
        return f"{b.maker}:{b.number}"
    return f"{b.maker} {b.kind}" + (f" {b.number}" if b.kind == "version" else "")


def _grouped(heavy: Sequence[Heavy], returned: Mapping[Buffer, None]) -> list[list[Heavy]]:
    """The groups, each at the place of its last op."""
    maker = {b: k for k, h in enumerate(heavy) for b in h.makes}
    asking: list[set[int]] = [set() for _ in heavy]
    for k, h in enumerate(heavy):
        for b in h.reads:
            if b in maker:
                asking[maker[b]].add(k)
    free = [not any(b in returned for b in h.makes) for h in heavy]
    groups: dict[int, list[int]] = {}
    last = list(range(len(heavy)))  # of the group that each op is in
    for k in range(len(heavy)):
        groups[k] = [k]
        tried: set[int] = set()
        while makers := {maker[b] for i in groups[k] for b in heavy[i].reads if b in maker} - tried:
            j = max(makers)
            tried.add(j)
            if last[j] != j or j == k or not (free[j] and asking[j] <= set(groups[k])):
                continue
            if _written_over(heavy, j, k, maker) or _of_one_update(heavy, j, k, groups):
                groups[k] = sorted(groups.pop(j) + groups[k])
                for i in groups[k]:
                    last[i] = k
    return [[heavy[i] for i in groups[k]] for k in sorted(groups)]


def _written_over(heavy: Sequence[Heavy], j: int, k: int, maker: Mapping[Buffer, int]) -> bool:
    """Whether op k writes its output over that of op j, the latest of those that make it something large.

    It must follow closely: what op j reads lives until op k.
    """
    second = heavy[k].op
    if k - j > _CLOSE:
        return False
    large = [b for b in heavy[k].reads if b in maker and heavy[maker[b]].makes[b] >= SMALL]
    latest = max(large, key=lambda b: maker[b], default=None)
    taken = {(second.inputs[i].op.name, second.inputs[i].value_index) for i in takes_over(second)}
    if latest is None or maker[latest] != j or heavy[j].once:
        return False
    others = sum(size for b, size in heavy[j].makes.items() if b != latest)
    return (latest.maker, latest.number) in taken and others < SMALL


def _of_one_update(heavy: Sequence[Heavy], j: int, k: int, groups: Mapping[int, Sequence[int]]) -> bool:
    """Whether the group of op j only prepares the update that op k makes, right before it.

    What a group with an update reads is made once. So what joins one computes element by element: it is not
    what made the gradient, for that reads activations. Nor is it another update: the momenta need the
    gradient, what follows does not. An op that calls functions is not one update but many.
    """
    prepares = all(is_elementwise(heavy[i].op) for i in groups[j])
    update = bool(heavy[k].overwrites) and not calls_functions(heavy[k].op)
    return update and prepares and j + 1 == groups[k][0]

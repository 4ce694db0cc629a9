"""The bytes that a program holds, copy by copy, as TensorFlow's kernels allocate and free them.

    M(k) = Σ buffers that are made by copies ≤ k and are read by copies ≥ k, or returned

The judge's count is an upper bound of this one, but for what light ops make: here an op writes over a dying
input where its kernel does. A variable whose old value is still needed is written to another place. What an
op's branches hold is counted in the same way, as if they stood in its place: the one that holds most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from checkmate_tf.branches import branch_arguments
from checkmate_tf.program import Copy, Program, Value, branch_programs
from checkmate_tf.storages import aliased_input, lender, nbytes, takes_over
from checkmate_tf.tracing import TracedGraph

__all__ = ["group_workspace", "resident_bytes"]

_LENT = -1
"""Stands for the number of an output: what a copy lends to a later one."""


def resident_bytes(
    program: Program, workspaces: Mapping[tf.Operation, int], given: Mapping[int, int] | None = None
) -> npt.NDArray[np.int64]:
    """Bytes held while each copy runs, int64 ``[n]``; without what is there from the start.

    Args:
        program: what runs.
        workspaces: bytes that an op needs only while it runs.
        given: bytes of the inputs that nobody else needs, by their numbers: they count until they are read
            for the last time.
    """
    copies, given = program.copies, given or {}
    buffers = _buffers(copies, given)
    read = [{b for v in c.inputs if (b := buffers.of(v)) is not None} for c in copies]
    for k, lent in _lent(copies).items():
        buffers.sizes[lent] = workspaces.get(copies[lent.copy].op, 0)
        read[k].add(lent)
    own: list[list[Value]] = [[] for _ in copies]
    for b in buffers.sizes:
        if b.copy >= 0:
            own[b.copy].append(b)
    readers: dict[Value, int] = {}
    for found in read:
        for b in found:
            readers[b] = readers.get(b, 0) + 1
    kept = {buffers.of(v) for v in program.outputs}
    held = sum(given.values())
    seen = np.zeros(len(copies), dtype=np.int64)
    for k, copy in enumerate(copies):
        for old in buffers.overwritten.get(k, ()):
            if readers.get(old, 0) or old in kept:
                buffers.sizes[old] = nbytes(copies[old.copy].op.outputs[0])
                held += buffers.sizes[old]
        dying = {b for b in read[k] if readers[b] == 1 and b not in kept}
        over = (b for i in takes_over(copy.op) if (b := buffers.of(copy.inputs[i])) in dying)
        taken = next(over, None)
        made = sum(buffers.sizes[b] for b in own[k])
        held += made
        further = 0 if Value(k, _LENT) in buffers.sizes else workspaces.get(copy.op, 0)
        if copy.branches:
            handed_over = _handed_over(copy, buffers, dying)
            further += _in_branches(copy, workspaces, handed_over, made)
        seen[k] = held + further - (buffers.sizes[taken] if taken is not None else 0)
        for b in read[k]:
            readers[b] -= 1
        unread = (b for b in own[k] if b not in readers and b not in kept)
        held -= sum(buffers.sizes[b] for b in (*dying, *unread))
    return seen


def group_workspace(
    traced: TracedGraph, group: Sequence[tf.Operation], size: int, workspaces: Mapping[tf.Operation, int]
) -> int:
    """Bytes that a group needs while it runs, beyond the outputs that it leaves.

    Args:
        traced: the step.
        group: ops that run one after the other; all but what the last one makes is theirs alone.
        size: of the outputs that it leaves, in bytes.
        workspaces: as in :func:`resident_bytes`.
    """
    place = {op.name: k for k, op in enumerate(group)}
    copies = [
        Copy(
            op=op,
            inputs=tuple(_inside(t, place) for t in op.inputs),
            heavy=True,
            branches=branch_programs(traced, op),
        )
        for op in group
    ]
    last = len(group) - 1
    outputs = tuple(Value(last, i) for i, _ in enumerate(group[-1].outputs))
    held = resident_bytes(Program(copies=tuple(copies), outputs=outputs), workspaces)
    return max(int(held.max()) - size, 0)


def _handed_over(copy: Copy, buffers: _Buffers, dying: Set[Value]) -> dict[int, int]:
    """Bytes of the arguments of a copy's branches that nobody else needs: a branch frees them."""
    read = [buffers.of(v) for v in branch_arguments(copy.inputs)]
    times = Counter(read)
    return {i: buffers.sizes[b] for i, b in enumerate(read) if b is not None and b in dying and times[b] == 1}


def _in_branches(
    copy: Copy, workspaces: Mapping[tf.Operation, int], given: Mapping[int, int], made: int
) -> int:
    """Bytes that the branches of a copy hold at most beside its inputs and what it makes."""
    held = [int(resident_bytes(branch, workspaces, given).max(initial=0)) for branch in copy.branches]
    return max(max(held) - sum(given.values()) - made, 0)


class _Buffers:
    """Which buffer every value lies in, and the bytes of each.

    What is read of a variable is of no bytes of its own, until the variable is written to.
    """

    def __init__(self) -> None:
        self.sizes: dict[Value, int] = {}
        self.aliases: dict[Value, Value | None] = {}
        self.overwritten: dict[int, list[Value]] = {}

    def of(self, value: Value) -> Value | None:
        """The buffer of a value; None if it is there from the start."""
        return self.aliases.get(value, value if value in self.sizes else None)


def _buffers(copies: Sequence[Copy], given: Mapping[int, int]) -> _Buffers:
    found = _Buffers()
    found.sizes = {Value(-1 - k, 0): size for k, size in given.items()}
    current: dict[Value, Value] = {}  # handle of a variable ↦ what is read of it now
    for k, copy in enumerate(copies):
        if copy.op.type == "ReadVariableOp":
            value = current.setdefault(copy.inputs[0], Value(k, 0))
            found.aliases[Value(k, 0)] = value
            found.sizes[value] = 0
            continue
        written = [current.pop(v) for v in copy.inputs if v in current]
        if written:
            found.overwritten[k] = written
        for i, output in enumerate(copy.op.outputs):
            source = aliased_input(copy.op, i)
            if source is not None and not (copy.heavy and copy.op.type == "ReadVariableOp"):
                found.aliases[Value(k, i)] = found.of(copy.inputs[source])
            elif copy.op.type != "Const":
                found.sizes[Value(k, i)] = nbytes(output)
    return found


def _lent(copies: Sequence[Copy]) -> dict[int, Value]:
    """The copies that use the workspace of an earlier one, and what that is."""
    found = {}
    for k, copy in enumerate(copies):
        if (before := lender(copy.op)) is not None:
            for v in copy.inputs:
                if v.copy >= 0 and copies[v.copy].op is before:
                    found[k] = Value(v.copy, _LENT)
    return found


def _inside(tensor: tf.Tensor, place: Mapping[str, int]) -> Value:
    """The value of a tensor that an op of a group reads, through the aliases between its ops."""
    while (k := aliased_input(tensor.op, tensor.value_index)) is not None:
        tensor = tensor.op.inputs[k]
    return Value(place.get(tensor.op.name, -1), tensor.value_index)

"""The bytes that a program holds, copy by copy, as TensorFlow's kernels allocate and free them.

    M(k) = Σ buffers that are made by copies ≤ k and are read by copies ≥ k, or returned

The judge's count is an upper bound of this one, but for what light ops make: here an op writes over a dying
input where its kernel does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from checkmate_tf.program import Copy, Program, Value
from checkmate_tf.storages import aliased_input, nbytes, takes_over

__all__ = ["group_workspace", "resident_bytes"]


def resident_bytes(program: Program, workspaces: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Bytes held while each copy runs, int64 ``[n]``; without what is there from the start.

    Args:
        program: what runs.
        workspaces: bytes that an op needs only while it runs, by its name.
    """
    copies = program.copies
    buffers = _buffers(copies)
    own = [
        [Value(k, i) for i, _ in enumerate(c.op.outputs) if Value(k, i) in buffers.sizes]
        for k, c in enumerate(copies)
    ]
    read = [{b for v in c.inputs if (b := buffers.of(v)) is not None} for c in copies]
    readers: dict[Value, int] = {}
    for found in read:
        for b in found:
            readers[b] = readers.get(b, 0) + 1
    kept = {buffers.of(v) for v in program.outputs}
    held = 0
    seen = np.zeros(len(copies), dtype=np.int64)
    for k, copy in enumerate(copies):
        dying = {b for b in read[k] if readers[b] == 1 and b not in kept}
        over = (b for i in takes_over(copy.op) if (b := buffers.of(copy.inputs[i])) in dying)
        taken = next(over, None)
        held += sum(buffers.sizes[b] for b in own[k])
        seen[k] = held + workspaces.get(copy.op.name, 0) - (buffers.sizes[taken] if taken is not None else 0)
        for b in read[k]:
            readers[b] -= 1
        unread = (b for b in own[k] if b not in readers and b not in kept)
        held -= sum(buffers.sizes[b] for b in (*dying, *unread))
    return seen


def group_workspace(group: Sequence[tf.Operation], size: int, workspaces: Mapping[str, int]) -> int:
    """Bytes that a group needs while it runs, beyond the outputs that it leaves.

    Args:
        group: ops that run one after the other; all but what the last one makes is theirs alone.
        size: of the outputs that it leaves, in bytes.
        workspaces: as in :func:`resident_bytes`.
    """
    place = {op.name: k for k, op in enumerate(group)}
    copies = [Copy(op=op, inputs=tuple(_inside(t, place) for t in op.inputs), heavy=True) for op in group]
    last = len(group) - 1
    outputs = tuple(Value(last, i) for i, _ in enumerate(group[-1].outputs))
    held = resident_bytes(Program(copies=tuple(copies), outputs=outputs), workspaces)
    return max(int(held.max()) - size, 0)


class _Buffers:
    """Which buffer every value lies in, and the bytes of each."""

    def __init__(self) -> None:
        self.sizes: dict[Value, int] = {}
        self.aliases: dict[Value, Value | None] = {}

    def of(self, value: Value) -> Value | None:
        """The buffer of a value; None if it is there from the start."""
        return self.aliases.get(value, value if value in self.sizes else None)


def _buffers(copies: Sequence[Copy]) -> _Buffers:
    found = _Buffers()
    for k, copy in enumerate(copies):
        for i, output in enumerate(copy.op.outputs):
            source = aliased_input(copy.op, i)
            if source is not None and not (copy.heavy and copy.op.type == "ReadVariableOp"):
                found.aliases[Value(k, i)] = found.of(copy.inputs[source])
            elif copy.op.type != "Const":
                found.sizes[Value(k, i)] = nbytes(output)
    return found


def _inside(tensor: tf.Tensor, place: Mapping[str, int]) -> Value:
    """The value of a tensor that an op of a group reads, through the aliases between its ops."""
    while (k := aliased_input(tensor.op, tensor.value_index)) is not None:
        tensor = tensor.op.inputs[k]
    return Value(place.get(tensor.op.name, -1), tensor.value_index)

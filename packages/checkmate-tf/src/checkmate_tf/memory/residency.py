"""Count the bytes that a program holds, copy by copy, as TensorFlow's kernels allocate and free them.

    M(k) = Σ buffers that are made by copies ≤ k and are read by copies ≥ k, or returned

The simulator counts at least as many bytes as this module, outputs of light ops aside: here an op writes over
a dying input if its kernel does. If the old value of a variable is still needed, the new one is written to
another place. Branches of an op are counted in the same way, as if their ops replaced the op; the branch that
holds the most counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from checkmate import DFGraph, Tensor
from checkmate.cost import OpProfile
from checkmate_tf.ops.control_flow import branch_arguments
from checkmate_tf.ops.storages import ALIASES, aliased_input, lender, output_bytes, takes_over
from checkmate_tf.running.ordered_step import OrderedStep
from checkmate_tf.running.program import Copy, Program, Value, branch_programs
from checkmate_tf.tracing.needs import Buffer
from checkmate_tf.tracing.step_graph import TracedGraph
from checkmate_tf.tracing.tensor_lists import TensorLists

__all__ = [
    "Changes",
    "changes",
    "held_by_group",
    "resident_bytes",
    "with_lent",
    "with_reuses",
    "workspaces_of",
]

_LENT = -1
"""The output number of a value that is no output: the workspace that a copy lends to a later one."""


class Changes(NamedTuple):
    """What happens to buffers while a copy runs; a buffer is named by its first value.

    Attributes:
        made: buffers that are resident from now on → their bytes.
        over: the buffer that one of the made buffers is written over; it is also in ``freed``.
        workspace: bytes that are needed only while the copy runs.
        freed: the buffers that are gone afterwards.
    """

    made: Mapping[Value, int]
    over: Value | None
    workspace: int
    freed: Set[Value]


def resident_bytes(
    program: Program, workspaces: Mapping[tf.Operation, int], given: Mapping[int, int] | None = None
) -> npt.NDArray[np.int64]:
    """Bytes held while each copy runs, int64 ``[n]``, without what is resident from the start.

    Args:
        program: the copies.
        workspaces: bytes that an op needs only while it runs.
        given: number of an input that only this program needs → its bytes, which count until its last read.
    """
    sizes, seen = dict(_named(given or {})), []
    held = sum(sizes.values())
    for made, over, workspace, freed in changes(program, workspaces, given):
        sizes |= made
        held += sum(made.values())
        seen.append(held + workspace - (sizes[over] if over is not None else 0))
        held -= sum(sizes[b] for b in freed)
    return np.array(seen, dtype=np.int64)


def changes(
    program: Program, workspaces: Mapping[tf.Operation, int], given: Mapping[int, int] | None = None
) -> Iterator[Changes]:
    """What happens to buffers while each copy runs; arguments as in :func:`resident_bytes`."""
    memory = _Memory(program, workspaces, given or {})
    return map(memory.run, range(len(program.copies)))


def held_by_group(
    traced: TracedGraph,
    group: Sequence[tf.Operation],
    workspaces: Mapping[tf.Operation, int],
    dying: Mapping[int, int] | None = None,
) -> int:
    """Bytes that a group holds at most while it runs, without its inputs.

    Args:
        traced: the step.
        group: ops that run one after the other; only the outputs of the last one are read by other groups.
        workspaces: as in :func:`resident_bytes`.
        dying: inputs that no later group reads, tensor of the graph → bytes; they count until the last op of
            the group that reads them.
    """
    place = {op.name: k for k, op in enumerate(group)}
    copies = tuple(
        Copy(
            op=op,
            inputs=tuple(_inside(t, place, traced.tensor_of) for t in op.inputs),
            heavy=True,
            branches=branch_programs(traced, op),
        )
        for op in group
    )
    outputs = tuple(Value(len(group) - 1, i) for i, _ in enumerate(group[-1].outputs))
    program = Program(copies=copies, outputs=outputs, lists=traced.lists)
    given = {_given(t): size for t, size in (dying or {}).items()}
    return int(resident_bytes(program, workspaces, given).max())


def workspaces_of(traced: TracedGraph, profiles: Mapping[tf.Operation, OpProfile]) -> dict[tf.Operation, int]:
    """Bytes that each op needs only while it runs; a loop needs the workspaces of the ops inside too."""
    found = {op: profile.workspace for op, profile in profiles.items()}
    for op, run in traced.loop_runs.items():
        inside = max((found.get(inner, 0) for inner in run.ops), default=0)
        found[op] = max(run.peak + inside - traced.lists.bytes_of(op), 0)
    return found


def with_lent(traced: TracedGraph, workspaces: Mapping[tf.Operation, int]) -> tuple[Tensor, ...]:
    """The tensors of a step; if a maker lends its workspace to a reader, its output grows by that."""
    tensors = list(traced.graph.tensors)
    for before in {b for group in traced.groups for op in group if (b := lender(op)) is not None}:
        t = traced.tensor_of.get(Buffer(before.name, "output", 0))
        if t is not None:
            tensors[t] = replace(tensors[t], size=tensors[t].size + workspaces.get(before, 0))
    return tuple(tensors)


def with_reuses(ordered: OrderedStep, workspaces: Mapping[tf.Operation, int]) -> OrderedStep:
    """The same step, in which each op reuses the memory of an input, where its kernels write over one.

    Op v reuses tensor t if the group of v holds no more bytes when t dies in it than without t. A group
    reuses one tensor at most: the kernel of a sum writes over one of its two inputs.
    """
    graph = ordered.graph
    ops = list(graph.ops)
    for v, original in enumerate(ordered.order):
        group = ordered.traced.groups[original]
        if any(op.name in ordered.starts for op in group) or not any(map(takes_over, group)):
            continue  # such a sum starts with another input
        held = ops[v].workspace + sum(graph.tensors[t].size for t in ops[v].outputs)
        for t in _candidates(graph, v):
            dying = {t: graph.tensors[t].size}
            if held_by_group(ordered.traced, group, workspaces, dying) <= held:
                ops[v] = replace(ops[v], reuses=(t,))
                break
    return replace(ordered, graph=replace(graph, ops=tuple(ops)))


class _Memory:
    """The buffers that are held while copies run, one after the other.

    Attributes:
        copies: the copies of the program.
        workspaces: bytes that an op needs only while it runs.
        buffers: the buffers of all values.
        made: copy → the buffers that it makes, a lent workspace included.
        read: copy → the buffers that it reads.
        released: copy → the buffers that are held until it is over.
        readers: buffer → the number of copies that will still read it, or that end a hold on it.
        kept: the buffers that are returned.
    """

    def __init__(
        self, program: Program, workspaces: Mapping[tf.Operation, int], given: Mapping[int, int]
    ) -> None:
        self.copies, self.workspaces = program.copies, workspaces
        self.buffers = _Buffers(program.copies, given, program.lists)
        self.read = [{b for v in c.inputs for b in self.buffers.behind(v)} for c in self.copies]
        for k, lent in _lent(self.copies).items():
            self.buffers.sizes[lent] = workspaces.get(self.copies[lent.copy].op, 0)
            self.read[k].add(lent)
        self.made: list[list[Value]] = [[] for _ in self.copies]
        for b in self.buffers.sizes:
            if b.copy >= 0:
                self.made[b.copy].append(b)
        self.released: dict[int, set[Value]] = {}
        for hold in program.holds:
            self.released.setdefault(hold.until, set()).update(self.buffers.behind(hold.value))
        self.readers = Counter(b for read in (*self.read, *self.released.values()) for b in read)
        self.kept = {b for v in program.outputs for b in self.buffers.behind(v)}

    def run(self, k: int) -> Changes:
        """Run copy k, the next one."""
        saved = self._saved(k)
        dying = {b for b in self.read[k] if self.readers[b] == 1 and b not in self.kept}
        over, workspace = self._taken_over(k, dying), self._own_workspace(k)
        if self.copies[k].branches:
            workspace += self._in_branches(k, dying)
        released = self.released.get(k, set())
        self.readers.subtract([*self.read[k], *released])
        unread = {b for b in (*self.made[k], *released) if not self.readers[b] and b not in self.kept}
        made = {b: self.buffers.sizes[b] for b in (*saved, *self.made[k])}
        return Changes(made, over, workspace, dying | unread)

    def _saved(self, k: int) -> Iterator[Value]:
        """The values of variables that copy k overwrites, if they are still needed."""
        for old in self.buffers.overwritten.get(k, ()):
            if self.readers[old] or old in self.kept:
                self.buffers.sizes[old] = output_bytes(self.copies[old.copy].op)[0]
                yield old

    def _own_workspace(self, k: int) -> int:
        """Workspace of copy k; 0 if it is lent to a later copy, because it is then among the buffers."""
        return 0 if Value(k, _LENT) in self.buffers.sizes else self.workspaces.get(self.copies[k].op, 0)

    def _taken_over(self, k: int, dying: Set[Value]) -> Value | None:
        """The buffer of the dying input that copy k writes its last output over.

        If the input is a row of a tensor, the output is in the buffer of the whole tensor, and keeps it.
        """
        copy, sizes = self.copies[k], self.buffers.sizes
        first = 2 if copy.op.type == "AddN" else len(copy.inputs)  # see checkmate_tf.running.addn_order
        made = output_bytes(copy.op)
        for v in (copy.inputs[i] for i in takes_over(copy.op) if i < first):
            b = self.buffers.of(v)
            if b is not None and b in dying and (sizes[b] in made or v in self.buffers.rows):
                if v in self.buffers.rows:
                    sizes[Value(k, len(made) - 1)] = sizes[b]
                return b
        return None

    def _in_branches(self, k: int, dying: Set[Value]) -> int:
        """Bytes that the branches of copy k hold at most beyond its inputs and its outputs.

        A branch frees the arguments that die with copy k.
        """
        copy, buffers = self.copies[k], self.buffers
        arguments = [buffers.of(v) for v in branch_arguments(copy.inputs)]
        times = Counter(arguments)
        freed = {
            i: buffers.sizes[b]
            for i, b in enumerate(arguments)
            if b is not None and b in dying and times[b] == 1
        }
        held = max(int(resident_bytes(run, self.workspaces, freed).max(initial=0)) for run in copy.branches)
        return max(held - sum(freed.values()) - sum(buffers.sizes[b] for b in self.made[k]), 0)


class _Buffers:
    """The buffer of every value, and the bytes of each buffer.

    The value read from a variable has no bytes of its own until the variable is written to.

    Attributes:
        sizes: buffer, named by its first value → bytes.
        aliases: value in the buffer of another one → that buffer; None = resident from the start.
        rows: values that are rows of another one, in its buffer.
        overwritten: copy that writes to variables → the values read from these before.
        lists: the tensor lists of the step.
        items: buffer of a list → the other buffers in which its items are.
    """

    def __init__(self, copies: Sequence[Copy], given: Mapping[int, int], lists: TensorLists) -> None:
        self.lists, self.items = lists, dict[Value, list[Value]]()
        self.sizes = dict(_named(given))
        self.aliases: dict[Value, Value | None] = {}
        self.rows: set[Value] = set()
        self.overwritten: dict[int, list[Value]] = {}
        current: dict[Value, Value] = {}  # handle of a variable → the value read from it since the last write
        for k, copy in enumerate(copies):
            if copy.op.type == "ReadVariableOp":
                value = current.setdefault(copy.inputs[0], Value(k, 0))
                self.aliases[Value(k, 0)] = value
                self.sizes[value] = 0
            else:
                if written := [current.pop(v) for v in copy.inputs if v in current]:
                    self.overwritten[k] = written
                self._add_outputs(k, copy)
                self._add_items(k, copy)

    def _add_outputs(self, k: int, copy: Copy) -> None:
        for i, size in enumerate(output_bytes(copy.op)):
            source = aliased_input(copy.op, i)
            if source is not None:
                self.aliases[Value(k, i)] = self.of(copy.inputs[source])
                if copy.op.type not in ALIASES or copy.inputs[source] in self.rows:
                    self.rows.add(Value(k, i))
            elif copy.op.type != "Const":
                self.sizes[Value(k, i)] = self.lists.sizes.get((copy.op.name, i), size)

    def _add_items(self, k: int, copy: Copy) -> None:
        """Note in which buffers the items of the lists that copy k makes are."""
        for name, number in self.lists.shared(copy.op):
            self.sizes[Value(k, number)] = self.lists.sizes[name, number]
        for i, _ in enumerate(output_bytes(copy.op)):
            if items := self.lists.refers.get((copy.op.name, i)):
                self.items[Value(k, i)] = [Value(k, number) for number in items]

    def behind(self, value: Value) -> Iterator[Value]:
        """The buffers behind a value; a list has its own, and the buffers of its items."""
        if (b := self.of(value)) is not None:
            yield b
            yield from self.items.get(b, ())

    def of(self, value: Value) -> Value | None:
        """The buffer of a value; None if it is resident from the start."""
        return self.aliases.get(value, value if value in self.sizes else None)


def _named(given: Mapping[int, int]) -> Iterator[tuple[Value, int]]:
    """The buffers of inputs, with their bytes."""
    return ((Value(-1 - k, 0), size) for k, size in given.items())


def _lent(copies: Sequence[Copy]) -> dict[int, Value]:
    """Copy → the workspace of an earlier copy that it uses."""
    found = {}
    for k, copy in enumerate(copies):
        if (before := lender(copy.op)) is not None:
            for v in copy.inputs:
                if v.copy >= 0 and copies[v.copy].op is before:
                    found[k] = Value(v.copy, _LENT)
    return found


def _inside(tensor: tf.Tensor, place: Mapping[str, int], tensor_of: Mapping[Buffer, int]) -> Value:
    """The value of a tensor that an op of a group reads, looked up through aliases."""
    while (k := aliased_input(tensor.op, tensor.value_index)) is not None:
        tensor = tensor.op.inputs[k]
    name, number = tensor.op.name, tensor.value_index
    if name in place:
        return Value(place[name], number)
    t = tensor_of.get(Buffer(name, "output", number))
    return Value(-1, number) if t is None else Value(-1 - _given(t), 0)


def _given(t: int) -> int:
    """The number that a tensor of the graph has among the inputs of a group; 0 is for all other inputs."""
    return t + 1


def _candidates(graph: DFGraph, v: int) -> Iterator[int]:
    """The inputs of an op that may die: first those with the fewest readers, among equals the latest."""
    movable = {t for t in graph.ops[v].inputs if graph.tensors[t].size} - {*graph.inputs, *graph.outputs}
    yield from sorted(movable, key=lambda t: (len(graph.readers.row(t)), -t))

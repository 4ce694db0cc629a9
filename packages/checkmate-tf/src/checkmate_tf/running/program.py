"""Turn a sequence of ops of a graph into copies of TensorFlow's ops, each with the copies that it reads.

    v₁ v₂ …  ↦  c₁ c₂ …     heavy ops in this order, light ones right before their first use

The bytes that a program holds are counted before it runs (:mod:`checkmate_tf.memory.residency`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from checkmate.analysis import sequence_to_run, with_writes_settled
from checkmate_tf.ops.storages import aliased_input
from checkmate_tf.running.lean_order import lean_order
from checkmate_tf.tracing.step_graph import TracedGraph
from checkmate_tf.tracing.tensor_lists import TensorLists

__all__ = ["Copy", "Hold", "Program", "Value", "branch_programs", "program", "roots_of"]


class Value(NamedTuple):
    """An output of a copy; copy number −1 − k means the k-th input of the step."""

    copy: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One run of an op.

    Attributes:
        op: the op of the captured step.
        inputs: the values that it reads.
        heavy: whether the schedule orders it; a light op runs as soon as its inputs exist.
        branches: the programs of its branches, see :mod:`checkmate_tf.ops.control_flow`.
    """

    op: tf.Operation
    inputs: tuple[Value, ...]
    heavy: bool
    branches: tuple[Program, ...] = ()


class Hold(NamedTuple):
    """A value held until copy ``until`` has run; if ``until`` is the number of copies, until the end."""

    value: Value
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The copies that run, and the results of the step.

    Attributes:
        copies: in order.
        outputs: the values that the step returns.
        lists: the tensor lists of the step.
        ends: for each op of the sequence, the number of the last copy that belongs to it.
        holds: the values that are held, although no other copy may read them.
        entire: whether every copy must run, also copies that no other copy reads and no result needs.
    """

    copies: tuple[Copy, ...]
    outputs: tuple[Value, ...]
    lists: TensorLists = field(default_factory=TensorLists)
    ends: tuple[int, ...] = ()
    holds: tuple[Hold, ...] = ()
    entire: bool = False


def program(
    traced: TracedGraph,
    sequence: Iterable[int],
    late: Container[int] = (),
    starts: Mapping[str, int] | None = None,
) -> Program:
    """The program of a sequence of the ops of a graph.

    Args:
        traced: the step.
        sequence: ops of ``traced.graph``, with repeats; each reads the latest copies of its inputs.
        late: positions of computes in vain that read a variable after its overwrite. They get light reads of
            their own, so that the overwritten value is not held for them.
        starts: name of an op → the input that is swapped with its first one.
    """
    writer = _Writer.of(traced, starts or {})
    ends: list[int] = []
    for k, v in enumerate(sequence):
        known = writer.forget_light() if k in late else {}
        for op in traced.groups[v]:
            for light in traced.reads_before.get(op.name, ()):
                writer.value(light.outputs[0])
            writer.run(op)
        writer.latest.update(known)
        ends.append(len(writer.copies) - 1)
    outputs = tuple(writer.value(t) for t in traced.captured.outputs)
    return Program(copies=tuple(writer.copies), outputs=outputs, lists=traced.lists, ends=tuple(ends))


def branch_programs(traced: TracedGraph, op: tf.Operation) -> tuple[Program, ...]:
    """The programs of the branches of an op: each of their ops once, in an order that holds few bytes."""
    return tuple(program(branch, _once(branch)) for branch in traced.branches.get(op.name, ()))


def _once(traced: TracedGraph) -> list[int]:
    graph, order = with_writes_settled(traced.graph, traced.writes, traced.in_sequence)
    writes = {k: traced.writes[v] for k, v in enumerate(order) if v in traced.writes}
    return [order[v] for v in sequence_to_run(graph, lean_order(graph), writes)]


def roots_of(copies: Sequence[Copy]) -> Callable[[Value], Value]:
    """Value ↦ the first value in the same buffer."""
    known: dict[Value, Value] = {}
    for k, copy in enumerate(copies):
        for t in copy.op.outputs:
            source = aliased_input(copy.op, t.value_index)
            if source is not None and copy.inputs:
                known[Value(k, t.value_index)] = known.get(copy.inputs[source], copy.inputs[source])
    return lambda v: known.get(v, v)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes a program, copy by copy.

    Attributes:
        traced: the step.
        copies: the copies so far.
        latest: op → number of its latest copy.
        heavy: inputs of the step, and the ops of the sequence so far.
        wires: op → its inputs, kept because TensorFlow takes time to list them.
        starts: as in :func:`program`.
    """

    traced: TracedGraph
    starts: Mapping[str, int]
    latest: dict[str, int]
    copies: list[Copy] = field(default_factory=list)
    heavy: set[str] = field(default_factory=set)
    wires: dict[str, list[tf.Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, traced: TracedGraph, starts: Mapping[str, int]) -> _Writer:
        given = {t.op.name: -1 - k for k, t in enumerate(traced.captured.inputs)}
        return cls(traced=traced, starts=starts, latest=given, heavy=set(given))

    def run(self, op: tf.Operation) -> None:
        """Add a copy of a heavy op."""
        inputs = self._inputs(op)
        self.heavy.add(op.name)
        self._add(op, inputs, heavy=True)

    def forget_light(self) -> dict[str, int]:
        """Forget the latest copies of light ops, which are returned."""
        light = {name: k for name, k in self.latest.items() if name not in self.heavy}
        for name in light:
            del self.latest[name]
        return light

    def value(self, tensor: tf.Tensor) -> Value:
        """The latest value of a tensor; a light op gets a new copy if its inputs have changed."""
        op = tensor.op
        if op.name not in self.heavy:
            inputs = self._inputs(op)
            known = self.latest.get(op.name)
            if known is None or self.copies[known].inputs != inputs:
                self._add(op, inputs, heavy=False)
        return Value(self.latest[op.name], tensor.value_index)

    def _inputs(self, op: tf.Operation) -> tuple[Value, ...]:
        if op.name not in self.wires:
            inputs = self.wires[op.name] = list(op.inputs)
            if start := self.starts.get(op.name, 0):
                inputs[0], inputs[start] = inputs[start], inputs[0]
        return tuple(self.value(t) for t in self.wires[op.name])

    def _add(self, op: tf.Operation, inputs: tuple[Value, ...], *, heavy: bool) -> None:
        self.latest[op.name] = len(self.copies)
        branches = branch_programs(self.traced, op)
        self.copies.append(Copy(op=op, inputs=inputs, heavy=heavy, branches=branches))

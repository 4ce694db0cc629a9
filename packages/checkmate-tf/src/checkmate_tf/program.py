"""A schedule as a sequence of copies of TensorFlow's ops, each with the copies that it reads.

    schedule σ = v₁ v₂ …  ↦  c₁ c₂ …     heavy ops in the order of σ, light ones right before their first use

The bytes that a program holds are counted before it runs (:mod:`checkmate_tf.residency`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from checkmate.analysis import sequence_to_run, with_writes_settled
from checkmate_tf.lean import lean_order
from checkmate_tf.tracing import TracedGraph

__all__ = ["Copy", "Program", "Value", "branch_programs", "program"]


class Value(NamedTuple):
    """One output of one copy; copy number −1 − k means the k-th input of the step."""

    copy: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One run of an op.

    Attributes:
        op: of the captured step.
        inputs: the values that it reads.
        heavy: whether the schedule orders it; a light op runs as soon as its inputs exist.
        branches: the programs of its branches, see :mod:`checkmate_tf.branches`.
    """

    op: tf.Operation
    inputs: tuple[Value, ...]
    heavy: bool
    branches: tuple[Program, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The copies that run, and the results of the step.

    Attributes:
        copies: in order.
        outputs: the values that the step returns.
    """

    copies: tuple[Copy, ...]
    outputs: tuple[Value, ...]


def program(traced: TracedGraph, sequence: Iterable[int]) -> Program:
    """The program of a sequence of the ops of a graph.

    Args:
        traced: the step.
        sequence: ops of ``traced.graph``, with repeats; each reads the latest copies of its inputs.
    """
    writer = _Writer.of(traced)
    for v in sequence:
        for op in traced.groups[v]:
            for light in traced.reads_before.get(op.name, ()):
                writer.value(light.outputs[0])
            writer.run(op)
    outputs = tuple(writer.value(t) for t in traced.captured.outputs)
    return Program(copies=tuple(writer.copies), outputs=outputs)


def branch_programs(traced: TracedGraph, op: tf.Operation) -> tuple[Program, ...]:
    """The programs of the branches of an op: each of their ops once, in a lean order."""
    return tuple(program(branch, _once(branch)) for branch in traced.branches.get(op.name, ()))


def _once(traced: TracedGraph) -> list[int]:
    graph, order = with_writes_settled(traced.graph, traced.writes, traced.in_sequence)
    writes = {k: traced.writes[v] for k, v in enumerate(order) if v in traced.writes}
    return [order[v] for v in sequence_to_run(graph, lean_order(graph), writes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes a program, copy by copy.

    Attributes:
        traced: the step.
        copies: the copies so far.
        latest: op → number of its latest copy.
        heavy: inputs of the step, and the ops of the sequence so far.
        wires: op → its inputs, kept because TensorFlow takes time to list them.
    """

    traced: TracedGraph
    latest: dict[str, int]
    copies: list[Copy] = field(default_factory=list)
    heavy: set[str] = field(default_factory=set)
    wires: dict[str, list[tf.Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, traced: TracedGraph) -> _Writer:
        given = {t.op.name: -1 - k for k, t in enumerate(traced.captured.inputs)}
        return cls(traced=traced, latest=given, heavy=set(given))

    def run(self, op: tf.Operation) -> None:
        """Add a copy of a heavy op."""
        inputs = self._inputs(op)
        self.heavy.add(op.name)
        self._add(op, inputs, heavy=True)

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
            self.wires[op.name] = list(op.inputs)
        return tuple(self.value(t) for t in self.wires[op.name])

    def _add(self, op: tf.Operation, inputs: tuple[Value, ...], *, heavy: bool) -> None:
        self.latest[op.name] = len(self.copies)
        branches = branch_programs(self.traced, op)
        self.copies.append(Copy(op=op, inputs=inputs, heavy=heavy, branches=branches))

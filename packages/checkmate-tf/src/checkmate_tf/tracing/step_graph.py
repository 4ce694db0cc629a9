"""Trace a captured step: turn TensorFlow's ops into the graph that is planned.

op of the graph       a group of heavy ops (:mod:`checkmate_tf.tracing.grouping`)
tensor of the graph   an argument, a variable, or a buffer that outlives the group that makes it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import tensorflow as tf

from checkmate import DFGraph, Op, Tensor
from checkmate_tf.capture.function_capture import Captured
from checkmate_tf.ops.storages import calls_functions, is_compiled, nbytes
from checkmate_tf.tracing.grouping import groups_of, in_sequence, results_first
from checkmate_tf.tracing.labels import Labels
from checkmate_tf.tracing.needs import Buffer, Heavy, Needs, needs_of
from checkmate_tf.tracing.tensor_lists import LoopRun, TensorLists, tensor_lists_of

__all__ = ["TracedGraph", "is_smaller", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedGraph:
    """A step as a graph of Checkmate, and how it corresponds to TensorFlow's ops.

    Attributes:
        captured: TensorFlow's ops.
        graph: the graph of Checkmate, without costs and workspaces.
        groups: the heavy ops of each op of the graph, in order.
        tensor_of: buffer → its tensor of the graph.
        writes: op of the graph that updates variables → the versions of large variables that it overwrites.
        in_sequence: ops of the graph whose runs must keep their order.
        reads_before: heavy op → light reads that must have run before it.
        branches: name of an op → its branches.
        lists: the tensor lists and loops of the step.
    """

    captured: Captured
    graph: DFGraph
    groups: tuple[tuple[tf.Operation, ...], ...]
    tensor_of: Mapping[Buffer, int]
    writes: Mapping[int, tuple[int, ...]]
    in_sequence: tuple[int, ...]
    reads_before: Mapping[str, Sequence[tf.Operation]]
    branches: Mapping[str, tuple[TracedGraph, ...]]
    lists: TensorLists

    @property
    def loop_runs(self) -> Mapping[tf.Operation, LoopRun]:
        """How loops run; a loop whose bytes are not known is left out."""
        return {op: run for step, op in self._parts if (run := step.lists.runs.get(op.name)) is not None}

    @property
    def uncounted(self) -> Iterator[tf.Operation]:
        """The heavy ops, also in branches, that may hold bytes which are not counted."""
        for step, op in self._parts:
            followed = op.name in step.lists.runs or op.name in step.branches or is_compiled(op)
            unknown = any(not t.shape.is_fully_defined() for t in op.outputs)
            if op.name in step.lists.uncounted or unknown or (calls_functions(op) and not followed):
                yield op

    @property
    def heavy(self) -> Iterator[tf.Operation]:
        """The heavy ops, each followed by the heavy ops of its branches."""
        return (op for _, op in self._parts)

    @property
    def _parts(self) -> Iterator[tuple[TracedGraph, tf.Operation]]:
        """The heavy ops, each with the step or branch that it belongs to."""
        for op in (op for group in self.groups for op in group):
            yield self, op
            for branch in self.branches.get(op.name, ()):
                yield from branch._parts


def trace(captured: Captured) -> TracedGraph:
    """The graph of a captured step, with all costs 0, and with updates where they were traced."""
    lists = tensor_lists_of(captured)
    needs = needs_of(captured.ops, captured.outputs, lists)
    returned = frozenset(b for t in captured.outputs for b in needs.of(t))
    groups = results_first(groups_of(needs.heavy, returned), returned)
    builder = _Builder(returned=returned, labels=Labels.of(captured))
    inputs = [
        builder.add_tensor(b, builder.labels.source(b.maker), size)
        for b, size in _inputs(captured, needs).items()
    ]
    for group in groups:
        builder.add_group(group)
    graph = DFGraph(
        ops=_with_passes(builder.ops, [builder.tensor_of[b] for b in _returned_scalars(captured, needs)]),
        tensors=tuple(builder.tensors),
        inputs=tuple(inputs),
        outputs=tuple(builder.outputs),
        fixed_size=captured.constants,
    )
    return TracedGraph(
        captured=captured,
        graph=graph,
        groups=tuple(tuple(h.op for h in group) for group in groups),
        tensor_of=builder.tensor_of,
        writes=builder.writes,
        in_sequence=tuple(in_sequence(groups)),
        reads_before=needs.reads_before,
        branches={op: tuple(map(trace, found)) for op, found in captured.branches.items()},
        lists=lists,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Builds a graph, group by group.

    Attributes:
        returned: the buffers that the step returns.
        labels: what messages call ops and variables.
        tensors: the tensors of the graph so far.
        tensor_of: buffer → its tensor.
        ops: the ops so far, their costs 0.
        outputs: the tensors that are resident at the end: those returned, and effects.
        writes: as in :class:`TracedGraph`.
    """

    returned: Set[Buffer]
    labels: Labels
    tensors: list[Tensor] = field(default_factory=list)
    tensor_of: dict[Buffer, int] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    writes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add_tensor(self, b: Buffer, name: str, size: int) -> int:
        """Add the tensor of a buffer; return its number."""
        self.tensor_of[b] = len(self.tensors)
        self.tensors.append(Tensor(name=name, size=size))
        return self.tensor_of[b]

    def add_group(self, group: Sequence[Heavy]) -> None:
        """Add the op that replaces a group, and the tensors that it makes."""
        made = []
        for b, size in _outliving(group).items():
            made.append(self.add_tensor(b, self._label(b, group[-1].op), size))
            if b in self.returned or b.kind != "output":
                self.outputs.append(made[-1])
        inside = {b for h in group for b in h.makes}
        if any(b.kind == "version" for b in inside):
            self.writes[len(self.ops)] = self._overwritten(group, made)
        self.ops.append(
            Op(  # inputs are sorted: TensorFlow lists those of a loop in another order in each trace
                name=self.labels(group[-1].op),
                inputs=tuple(sorted({self.tensor_of[b] for h in group for b in h.reads if b not in inside})),
                outputs=tuple(made),
                cost=0,
                recomputable=not any(h.once for h in group),
            )
        )

    def _overwritten(self, group: Sequence[Heavy], made: Sequence[int]) -> tuple[int, ...]:
        """The tensors that a group writes over, except those that it makes."""
        overwritten = (self.tensor_of[b] for h in group for b in h.overwrites)
        return tuple(t for t in overwritten if t not in made)

    def _label(self, b: Buffer, op: tf.Operation) -> str:
        """The name that messages use for a tensor, or an effect, that ``op`` makes."""
        if b.kind == "output":
            return self.labels(op) + (f":{b.number}" if b.number else "")
        return f"{self.labels.source(b.maker)} {b.kind}" + (f" {b.number}" if b.kind == "version" else "")


def _inputs(captured: Captured, needs: Needs) -> dict[Buffer, int]:
    """The buffers that are resident from the start, with bytes: arguments, and variables."""
    arguments = {Buffer(t.op.name, "output", 0): nbytes(t) for t in captured.inputs if t.dtype != tf.resource}
    return arguments | {Buffer(handle, "version", 0): size for handle, size in needs.variables.items()}


def _outliving(group: Sequence[Heavy]) -> dict[Buffer, int]:
    """The buffers that outlive a group, with bytes: all of its last op, and the effects of the others."""
    effects = {b: size for h in group[:-1] for b, size in h.makes.items() if b.kind != "output"}
    return {**effects, **group[-1].makes}


def _returned_scalars(captured: Captured, needs: Needs) -> Iterator[Buffer]:
    """The buffers of returned scalars, without effects, which every returned tensor waits for."""
    for t in captured.outputs:
        if t.shape.rank == 0:
            yield from (b for b in needs.of(t) if b.kind != "done")


def _with_passes(ops: Sequence[Op], scalars: Sequence[int]) -> tuple[Op, ...]:
    """Mark as backward each op that the returned scalars, such as the loss, do not need."""
    if not scalars:
        return tuple(ops)
    needed = set(scalars)
    found: list[Op] = []
    for op in reversed(ops):
        forward = bool(needed & set(op.outputs))
        if forward:
            needed.update(op.inputs)
        found.append(op if forward else replace(op, backward=True))
    return tuple(found[::-1])


def is_smaller(traced: TracedGraph, than: TracedGraph) -> bool:
    """Whether a step has the same ops as another one, on tensors that are not larger."""
    a, b = traced.graph, than.graph
    return (
        (a.inputs, a.outputs, a.n_tensors) == (b.inputs, b.outputs, b.n_tensors)
        and [(op.inputs, op.outputs, op.recomputable) for op in a.ops]
        == [(op.inputs, op.outputs, op.recomputable) for op in b.ops]
        and [len(group) for group in traced.groups] == [len(group) for group in than.groups]
        and [op.type for op in traced.heavy] == [op.type for op in than.heavy]
        and all(x.size <= y.size for x, y in zip(a.tensors, b.tensors, strict=True))
    )

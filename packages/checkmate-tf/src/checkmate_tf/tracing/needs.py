"""Find the buffers that each op of a step needs: outputs of ops, versions of variables, earlier effects.

    source   arguments, captured tensors, constants: always resident
    light    aliases, and small ops on small tensors: made again wherever they are needed, at no cost;
             an op that calls functions is never light
    heavy    all others; an op that does more than compute its outputs runs exactly once

A variable is a buffer that is resident from the start; an assignment makes its next version, of no bytes, in
the same place. A read of a variable is an alias of the version that it sees, so a large variable must be read
before it is overwritten. The value read from a small variable is held, and TensorFlow then writes to another
place. If the value read from a large variable is still needed after the next assignment, the read is heavy:
it makes a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from checkmate_tf import private
from checkmate_tf.ops.control_flow import LOOPS
from checkmate_tf.ops.storages import aliased_input, calls_functions, is_source, nbytes
from checkmate_tf.tracing.tensor_lists import TensorLists

__all__ = ["SMALL", "Buffer", "Heavy", "Needs", "needs_of"]

SMALL = 4096
"""Bytes below which a tensor is not planned."""
_EMPTY = frozenset({"NoOp", "EmptyTensorList", "TensorListReserve"})
"""Types of ops that make nothing, or lists without items."""


class Buffer(NamedTuple):
    """Something that an op can need.

    Attributes:
        maker: name of the op that makes it, or of the placeholder of a variable's handle.
        kind: ``"output"``; ``"version"``, of a variable; or ``"done"``: the fact that the op has run.
        number: the number of the output or of the version.
    """

    maker: str
    kind: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heavy:
    """A heavy op.

    Attributes:
        op: the op of TensorFlow.
        reads: the buffers that it needs.
        makes: the buffers that it makes, with their bytes.
        overwrites: the versions that it replaces.
        once: whether it runs exactly once.
        in_sequence: whether it has effects other than new versions of variables: such ops keep their order.
    """

    op: tf.Operation
    reads: tuple[Buffer, ...]
    makes: Mapping[Buffer, int]
    overwrites: tuple[Buffer, ...]
    once: bool
    in_sequence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs of the ops of a step; made by :func:`needs_of`, op by op.

    Attributes:
        heavy: the heavy ops, in the order of the step.
        lists: the tensor lists of the step.
        variables: bytes of each variable, by the placeholder of its handle.
        reads_before: op that overwrites small variables → the reads that must have run before it.
        kept: light ops that are treated as heavy, because the value that they read from a large variable is
            needed after it is overwritten.
        outdated: light ops that were found to need the same, and are not in ``kept`` yet.
        _roots: light op or source → the buffers that its outputs need.
        _heavy_of: name of a heavy op → that op.
        _version: variable → number of its present version.
        _handle: output of an op that is a handle → its variable.
        _held: variable → the light reads of its present version.
        _seen: light op → the versions that it reads.
    """

    heavy: list[Heavy] = field(default_factory=list)
    lists: TensorLists = field(default_factory=TensorLists)
    variables: dict[str, int] = field(default_factory=dict)
    reads_before: dict[str, list[tf.Operation]] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    outdated: set[str] = field(default_factory=set)
    _roots: dict[str, dict[Buffer, None]] = field(default_factory=dict)
    _heavy_of: dict[str, Heavy] = field(default_factory=dict)
    _version: dict[str, int] = field(default_factory=dict)
    _handle: dict[tuple[str, int], str] = field(default_factory=dict)
    _held: dict[str, list[tf.Operation]] = field(default_factory=dict)
    _seen: dict[str, list[Buffer]] = field(default_factory=dict)

    def of(self, tensor: tf.Tensor) -> dict[Buffer, None]:
        """The buffers that a tensor needs, in the order in which they are needed."""
        name, number = tensor.op.name, tensor.value_index
        if name not in self._heavy_of:
            return self._roots[name]
        items = self.lists.refers.get((name, number), ())
        return {Buffer(name, "output", k): None for k in (number, *items)}

    def add(self, op: tf.Operation) -> None:
        """Add the next op of the step."""
        if is_source(op):
            self._add_source(op)
            return
        self.check_reads(op.inputs)
        read, written = map(self._variables_behind, private.resources(op))
        effects = private.is_stateful(op) and (bool(written) or not read)
        light = not effects and _is_light(op) and op.name not in self.kept
        needs = self._before(op)
        for name in (*read, *written):
            if not (light and self._is_small(name) and self._version.get(name, 0) == 0):
                needs[self._current(name)] = None
        if light:
            self._add_light(op, needs, read)
        else:
            self._add_heavy(op, needs, written, effects)
        for t in op.outputs:
            self._pass_handle(op, t)

    def check_reads(self, tensors: Iterable[tf.Tensor]) -> None:
        """Note the light ops behind tensors that read an earlier version of a large variable."""
        stack = [t.op for t in tensors if any(map(self._is_old, self.of(t)))]
        while stack:
            op = stack.pop()
            if any(map(self._is_old, self._seen.get(op.name, ()))):
                self.outdated.add(op.name)
            stack.extend(t.op for t in op.inputs if any(map(self._is_old, self.of(t))))

    def _is_old(self, b: Buffer) -> bool:
        return b.kind == "version" and not self._is_small(b.maker) and b != self._current(b.maker)

    def _before(self, op: tf.Operation) -> dict[Buffer, None]:
        """The buffers behind the inputs of an op, and the effects that it waits for."""
        needs: dict[Buffer, None] = {}
        for t in op.inputs:
            needs |= self.of(t)
        for c in op.control_inputs:
            needs |= self._done(c)
        return needs

    def _add_source(self, op: tf.Operation) -> None:
        output = op.outputs[0]
        self._roots[op.name] = {}
        if output.dtype == tf.resource:
            self._handle[op.name, 0] = op.name
            self.variables[op.name] = sum(map(nbytes, private.resource_specs(output)))
        elif op.type != "Const":
            self._roots[op.name] = {Buffer(op.name, "output", 0): None}

    def _add_light(self, op: tf.Operation, needs: dict[Buffer, None], read: Sequence[str]) -> None:
        self._roots[op.name] = needs
        self._seen[op.name] = [self._current(name) for name in read]
        for name in read:
            self._held.setdefault(name, []).append(op)

    def _add_heavy(
        self, op: tf.Operation, needs: Mapping[Buffer, None], written: Sequence[str], effects: bool
    ) -> None:
        makes = self._made(op)
        overwrites = tuple(self._current(name) for name in written if not self._is_small(name))
        self.reads_before[op.name] = [
            r for name in written if self._is_small(name) for r in self._held.pop(name, ())
        ]
        for name in written:
            self._version[name] = self._version.get(name, 0) + 1
            makes[self._current(name)] = 0
        if effects:
            makes[Buffer(op.name, "done", 0)] = 0
        heavy = Heavy(
            op=op,
            reads=tuple(needs),
            makes=makes,
            overwrites=overwrites,
            once=effects or self._is_opaque(op),
            in_sequence=effects and not written,
        )
        self._heavy_of[op.name] = heavy
        self.heavy.append(heavy)

    def _made(self, op: tf.Operation) -> dict[Buffer, int]:
        """The buffers of the outputs of an op, and of the items that its lists share, with bytes."""
        made = {(op.name, t.value_index): nbytes(t) for t in op.outputs}
        made |= dict.fromkeys(self.lists.shared(op), 0)
        return {
            Buffer(name, "output", k): self.lists.sizes.get((name, k), n) for (name, k), n in made.items()
        }

    def _is_opaque(self, op: tf.Operation) -> bool:
        """Whether an op passes on handles that are not followed."""
        on_lists = any(t.dtype == tf.variant for t in (*op.inputs, *op.outputs))
        if on_lists or op.type in LOOPS:
            return op.name in self.lists.uncounted
        return any(t.dtype == tf.resource for t in op.outputs)

    def _done(self, op: tf.Operation) -> dict[Buffer, None]:
        """The effects of an op; if it has none, the effects that it waits for."""
        heavy = self._heavy_of.get(op.name)
        found = self._roots[op.name] if heavy is None else heavy.makes
        return {b: None for b in found if b.kind == "done"}

    def _variables_behind(self, handles: Iterable[tf.Tensor]) -> list[str]:
        """The variables that handles refer to, each once."""
        return list(dict.fromkeys(self._handle[t.op.name, t.value_index] for t in handles))

    def _pass_handle(self, op: tf.Operation, output: tf.Tensor) -> None:
        if output.dtype != tf.resource:
            return
        k = aliased_input(op, output.value_index)
        if op.type in LOOPS:
            k = output.value_index
        source = op.inputs[k] if k is not None else None
        known = self._handle[source.op.name, source.value_index] if source is not None else output.name
        self._handle[op.name, output.value_index] = known
        self.variables.setdefault(known, 0)

    def _is_small(self, name: str) -> bool:
        return self.variables[name] < SMALL

    def _current(self, handle: str) -> Buffer:
        return Buffer(handle, "version", self._version.get(handle, 0))


def needs_of(ops: Sequence[tf.Operation], outputs: Sequence[tf.Tensor], lists: TensorLists) -> Needs:
    """The needs of every op of a step, whose ops are in an order in which they can run."""
    needs = Needs(lists=lists)
    while True:
        for op in ops:
            needs.add(op)
        needs.check_reads(outputs)
        if not needs.outdated:
            return needs
        needs = Needs(lists=lists, kept=needs.kept | needs.outdated)


def _is_light(op: tf.Operation) -> bool:
    if op.type in _EMPTY or (op.outputs and aliased_input(op, 0) is not None):
        return True
    known = all(t.shape.is_fully_defined() and t.dtype not in (tf.variant, tf.resource) for t in op.outputs)
    small = known and all(nbytes(t) < SMALL for t in (*op.inputs, *op.outputs))
    return small and not calls_functions(op)

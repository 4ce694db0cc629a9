"""Find the bytes of tensor lists and of loops, by running loops on buffers instead of values.

A tensor list holds tensors, its *items*, which lists may share. A loop with gradients pushes the results of
its iterations to lists, from which the loop of the gradients takes them. A list's bytes depend on how often a
loop runs, which is known if its condition depends on constants alone, or has a constant limit. If a loop
holds the same after each iteration, the number of iterations does not matter.

    state ↦ body ↦ next state:      M = buffers that the state refers to + buffers that the body makes

Within an iteration nothing counts as freed. If a condition also depends on data, the loop runs up to its
limit here, and may hold less in fact. Ops that this module does not follow are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from checkmate_tf.capture.function_capture import Captured
from checkmate_tf.ops.control_flow import LOOPS, Loop
from checkmate_tf.ops.storages import nbytes
from checkmate_tf.tracing.list_ops import (
    Buffers,
    FollowedOp,
    Item,
    NotCountedError,
    Operand,
    TensorList,
    items_of,
)

__all__ = ["Key", "LoopRun", "TensorLists", "tensor_lists_of"]

_MOST_STEPS = 2_000_000
"""The most ops that are run here for all loops of one step."""
_SETTLED = 2
"""If a loop holds the same after this number of iterations in a row, further ones add nothing."""
Key: TypeAlias = tuple[str, int]
"""Name of an op, and number of its output."""


class LoopRun(NamedTuple):
    """How a loop runs.

    Attributes:
        ops: the ops of its functions, each with the number of its runs.
        peak: the most bytes that it holds beyond its inputs, without the workspaces of its ops.
    """

    ops: Mapping[tf.Operation, int]
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLists:
    """The lists and loops of a step; made by :func:`tensor_lists_of`.

    Attributes:
        sizes: list, or output of a loop → bytes of its items. Items that several outputs of a loop share have
            a buffer of their own, numbered after the outputs. Items made before the op count again: the list
            may outlive the tensors that were put into it. Outputs that the loop passes through count 0.
        refers: list, or output of a loop → the numbers of the op's other buffers that hold its items.
        lends: buffer of shared items → the output through which the items can be held.
        runs: name of a loop → how it runs.
        uncounted: names of the ops with lists or loops whose bytes are not known.
    """

    sizes: dict[Key, int] = field(default_factory=dict)
    refers: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    lends: dict[Key, int] = field(default_factory=dict)
    runs: dict[str, LoopRun] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)

    def shared(self, op: tf.Operation) -> Iterator[Key]:
        """The buffers of shared items that an op makes."""
        number = len(op.outputs)
        while (op.name, number) in self.lends:
            yield op.name, number
            number += 1

    def bytes_of(self, op: tf.Operation) -> int:
        """Bytes of all items that a loop, or an op that makes a list, leaves."""
        outputs = ((op.name, number) for number, _ in enumerate(op.outputs))
        return sum(self.sizes.get(key, 0) for key in (*outputs, *self.shared(op)))


def tensor_lists_of(step: Captured) -> TensorLists:
    """Find the bytes of all lists and loops of a step."""
    finder = _Finder()
    if step.loops or any(t.dtype == tf.variant for op in step.ops for t in op.outputs):
        for op in step.ops:
            finder.add(op, step.loops)
    return finder.lists


class _Finder:
    """Follows the ops of a step.

    Attributes:
        lists: what was found.
        machine: runs the loops.
        values: output → its value; missing ones are not known.
        owner: buffer of an item → the list, or the shared items, that it belongs to.
    """

    def __init__(self) -> None:
        self.lists, self.machine = TensorLists(), _Machine()
        self.values: dict[Key, Operand] = {}
        self.owner: dict[int, Key] = {}

    def add(self, op: tf.Operation, loops: Mapping[str, Loop[Captured]]) -> None:
        """Follow the next op."""
        first = len(self.machine.buffers.sizes)
        try:
            inputs = [self._value(t) for t in op.inputs]
            if op.type in LOOPS:
                self.lists.runs[op.name], outputs = self.machine.loop(loops[op.name], inputs)
                self._share(op, outputs, first)
            else:
                outputs = FollowedOp(op).run(self.machine.buffers, inputs, own=False)
        except NotCountedError:
            self.lists.runs.pop(op.name, None)
            if op.type in LOOPS or any(t.dtype == tf.variant for t in (*op.inputs, *op.outputs)):
                self.lists.uncounted.add(op.name)
            return
        for number, value in enumerate(outputs):
            self.values[op.name, number] = value
            passed = op.type in LOOPS and _buffers(value) == _buffers(inputs[number])
            if op.type in LOOPS or isinstance(value, TensorList):
                self._count((op.name, number), {} if passed else _buffers(value), first)

    def _count(self, key: Key, items: Mapping[int, int], first: int) -> None:
        """Count the items of an output; its op made the buffers from number ``first`` on."""
        own = {b: size for b, size in items.items() if b < first or self.owner.get(b, key) == key}
        self.owner |= dict.fromkeys(own, key)
        self.lists.sizes[key] = sum(own.values())
        self.lists.refers[key] = tuple(dict.fromkeys(self.owner[b][1] for b in items if b not in own))

    def _value(self, tensor: tf.Tensor) -> Operand:
        """The value of a tensor; a plain tensor that was not followed gets a buffer of its own."""
        known = self.values.get((tensor.op.name, tensor.value_index))
        if known is None and tensor.dtype == tf.variant:
            raise NotCountedError
        if known is None:
            known = self.values[tensor.op.name, tensor.value_index] = self.machine.buffers.new(nbytes(tensor))
        return known

    def _share(self, op: tf.Operation, outputs: Sequence[Operand], first: int) -> None:
        """Give the items that several lists of a loop share buffers of their own."""
        held_by: defaultdict[Item, list[int]] = defaultdict(list)
        for number, value in enumerate(outputs):
            if isinstance(value, TensorList):
                for buffer, size in _buffers(value).items():
                    if buffer >= first:
                        held_by[Item(buffer, size)].append(number)
        groups: dict[tuple[int, ...], Key] = {}
        for item, lists in held_by.items():
            if len(lists) > 1:
                key = groups.setdefault(tuple(lists), (op.name, len(op.outputs) + len(groups)))
                self.owner[item.buffer] = key
                self.lists.sizes[key] = self.lists.sizes.get(key, 0) + item.size
                self.lists.lends[key] = lists[0]


def _buffers(value: Operand) -> dict[int, int]:
    """The buffers of the items of a list, or of a tensor, with bytes."""
    return {item.buffer: item.size for item in items_of(value)}


class _Machine:
    """Runs loops.

    Attributes:
        buffers: the bytes of all buffers.
        left: the most ops that may still be run.
    """

    def __init__(self) -> None:
        self.buffers, self.left = Buffers(), _MOST_STEPS
        self._bodies: dict[int, _Body] = {}

    def loop(self, loop: Loop[Captured], inputs: Sequence[Operand]) -> tuple[LoopRun, list[Operand]]:
        """How a loop runs, and its outputs."""
        condition, body = self._body(loop.condition), self._body(loop.body)
        state = _State(self.buffers.sizes, inputs)
        ops: Counter[tf.Operation] = Counter()
        peak, sizes = 0, [state.size]
        while True:
            (going,) = condition.run(self, state.values, ops)
            if not isinstance(going, Item):
                raise NotCountedError
            if going.numbers is None and not condition.is_limited and len(sizes) > _SETTLED:
                if len(set(sizes[-_SETTLED:])) > 1:
                    raise NotCountedError
                unknown = [v._replace(numbers=None) if isinstance(v, Item) else v for v in state.values]
                return LoopRun(ops, peak), unknown
            if going.numbers is not None and not going.numbers:
                return LoopRun(ops, max(peak, state.size[0])), state.values
            made = len(self.buffers.sizes)
            state.become(body.run(self, state.values, ops))
            peak = max(peak, sizes[-1][0] + sum(self.buffers.sizes[made:]))
            sizes.append(state.size)

    def _body(self, function: Captured) -> _Body:
        return self._bodies.setdefault(id(function), _Body(function))


class _State:
    """What a loop passes from one iteration to the next.

    Attributes:
        values: the values of its variables; no two of them are the same list.
        held: bytes of the buffers that the loop has made and the values refer to.
    """

    def __init__(self, sizes: Sequence[int], inputs: Sequence[Operand]) -> None:
        self._sizes, self._first = sizes, len(sizes)
        self._times: Counter[int] = Counter()
        self.values = [v.copy() if isinstance(v, TensorList) else v for v in inputs]
        self.held = 0

    @property
    def size(self) -> tuple[int, int]:
        """Bytes held, and items in lists."""
        return self.held, sum(len(v.items) for v in self.values if isinstance(v, TensorList))

    def become(self, values: Sequence[Operand]) -> None:
        """Go on to the next iteration, whose values may be lists of this one, changed in their place."""
        times = Counter(id(v) for v in values if isinstance(v, TensorList))
        following = [v.copy() if times[id(v)] > 1 and isinstance(v, TensorList) else v for v in values]
        for buffer, n in _change(self.values, following).items():
            if buffer >= self._first and n:
                had, self._times[buffer] = self._times[buffer], self._times[buffer] + n
                self.held += self._sizes[buffer] * (bool(self._times[buffer]) - bool(had))
        self.values = following


def _change(values: Sequence[Operand], following: Sequence[Operand]) -> Counter[int]:
    """Buffer → how much more often the following values refer to it; changes of lists are cleared."""
    before, after = ({id(v): v for v in some} for some in (values, following))
    change: Counter[int] = Counter()
    for key, value in (before | after).items():
        if key not in before:
            change.update(item.buffer for item in items_of(value))
        elif isinstance(value, TensorList):
            change.update(value.changes)
        if key not in after:
            change.subtract(item.buffer for item in items_of(value))
        if isinstance(value, TensorList):
            value.changes.clear()
    return change


class _Body:
    """A function that a loop calls, prepared for many runs.

    Attributes:
        ops: that TensorFlow runs at each call.
        is_limited: whether its result may be false although one of its parts is not known.
    """

    def __init__(self, function: Captured) -> None:
        self.ops = [op for op in function.ops if op.outputs]
        self.is_limited = any(op.type == "LogicalAnd" for op in self.ops)
        self._loops = function.loops
        self._followed = [FollowedOp(op) for op in self.ops]
        self._reads = [[(t.op.name, t.value_index) for t in op.inputs] for op in self.ops]
        self._outputs = [(t.op.name, t.value_index) for t in function.outputs]
        self._inputs = [(t.op.name, 0) for t in function.inputs]
        self._own = list(self._reads_alone())

    def _reads_alone(self) -> Iterator[bool]:
        """For each op: whether nothing else reads its first input, under any name."""
        behind: dict[Key, Key] = {}
        read = list(self._outputs)
        for op, followed, reads in zip(self.ops, self._followed, self._reads, strict=True):
            if followed.passes_on:
                for number, _ in enumerate(op.outputs):
                    source = reads[number if len(reads) > 1 else 0]
                    behind[op.name, number] = behind.get(source, source)
            else:
                read += reads
        times = Counter(behind.get(key, key) for key in read)
        for reads in self._reads:
            yield bool(reads) and times[behind.get(reads[0], reads[0])] == 1

    def run(
        self, machine: _Machine, arguments: Sequence[Operand], ran: Counter[tf.Operation]
    ) -> list[Operand]:
        """The results of one call; ``ran`` counts the runs of ops."""
        ran.update(self.ops)
        machine.left -= len(self.ops)
        if machine.left < 0:
            raise NotCountedError
        values: dict[Key, Operand] = dict(zip(self._inputs, arguments, strict=True))
        for op, followed, reads, own in zip(self.ops, self._followed, self._reads, self._own, strict=True):
            name = op.name
            if (name, 0) in values:  # an argument
                continue
            inputs = [values[key] for key in reads]
            if followed.type in LOOPS:
                within, outputs = machine.loop(self._loops[name], inputs)
                ran.update(within.ops)
            else:
                outputs = followed.run(machine.buffers, inputs, own)
            for number, value in enumerate(outputs):
                values[name, number] = value
        return [values[key] for key in self._outputs]

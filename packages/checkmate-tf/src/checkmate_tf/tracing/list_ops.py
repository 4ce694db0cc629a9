"""Run ops on buffers instead of values: which tensors and tensor lists each op makes, reads and shares.

    PushBack(l, x) = l + [x]      SetItem(l, i, x): lᵢ = x      GetItem(l, i) = lᵢ

None of these copies a tensor: x and lᵢ are in the same buffer. Only the values of small integer tensors are
followed, because they count iterations and index items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from checkmate_tf.ops.storages import aliased_input, calls_functions, is_source, nbytes

__all__ = ["Buffers", "FollowedOp", "Item", "NotCountedError", "Operand", "TensorList", "items_of"]

_MOST_NUMBERS = 64
"""The most elements of an integer tensor whose values are followed."""
_Numbers: TypeAlias = Any
"""A NumPy array of a few integers or booleans; None = not known."""
# fmt: off
_ARITHMETIC: Mapping[str, Callable[..., _Numbers]] = {
    "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "Minimum": np.minimum, "Maximum": np.maximum,
    "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater, "GreaterEqual": np.greater_equal,
    "Equal": np.equal, "NotEqual": np.not_equal, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not, "Cast": np.asarray,
}
# fmt: on
"""Ops on integers and booleans that are followed."""


class NotCountedError(Exception):
    """An op uses lists, or loops, in a way that is not followed, so its bytes are not counted."""


class Item(NamedTuple):
    """A tensor.

    Attributes:
        buffer: the number of its buffer.
        size: bytes.
        numbers: its values, if they are known and are a few integers.
    """

    buffer: int
    size: int
    numbers: _Numbers = None


@dataclass(slots=True, eq=False)
class TensorList:
    """A tensor list.

    Attributes:
        items: the items; None = not set yet. The gradient of a loop in a loop has lists as items.
        changes: buffer → times put in minus times taken out, since this counter was last cleared.
    """

    items: list[Item | TensorList | None]
    changes: Counter[int] = field(default_factory=Counter)

    def copy(self) -> TensorList:
        """A list of the same items; lists among them are copied, too."""
        return TensorList([x.copy() if isinstance(x, TensorList) else x for x in self.items])

    def append(self, item: Operand) -> None:
        """Add an item at the end."""
        self.items.append(item)
        self.changes.update(i.buffer for i in items_of(item))

    def pop(self) -> Operand | None:
        """Take the last item."""
        item = self.items.pop()
        self.changes.subtract(i.buffer for i in items_of(item))
        return item

    def put(self, at: int, item: Operand) -> None:
        """Set an item."""
        self.changes.subtract(i.buffer for i in items_of(self.items[at]))
        self.items[at] = item
        self.changes.update(i.buffer for i in items_of(item))


Operand: TypeAlias = Item | TensorList
"""An input or an output of an op."""


def items_of(value: Operand | None) -> Iterator[Item]:
    """The tensors in a list and in the lists that are its items; or the tensor itself."""
    if isinstance(value, TensorList):
        for item in value.items:
            yield from items_of(item)
    elif value is not None:
        yield value


class Buffers:
    """The bytes of all buffers, which are numbered."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def new(self, size: int, numbers: _Numbers = None) -> Item:
        """A tensor in a new buffer."""
        self.sizes.append(size)
        return Item(len(self.sizes) - 1, size, numbers)


class FollowedOp:
    """An op, neither a loop nor a branch, that runs on buffers instead of values.

    Attributes:
        type: the type of the op.
        constant: the value of a constant of few integers.
        sizes: bytes of the outputs; None = not known.
        length: the first dimension of the first input that has one.
        resizes: whether the op sets items beyond the end of a list.
    """

    def __init__(self, op: tf.Operation) -> None:
        """Read all that the runs need: TensorFlow's own properties are slow."""
        self.type = op.type
        self.constant = _static(op) if op.type == "Const" else None
        self.sizes = [_bytes(t) for t in op.outputs]
        self.length = next((t.shape[0] for t in op.inputs if t.shape.rank), None)
        self.resizes = op.type == "TensorListSetItem" and bool(op.get_attr("resize_if_index_out_of_bounds"))
        self._source = is_source(op)
        self._on_lists = any(t.dtype == tf.variant for t in (*op.inputs, *op.outputs))
        self._shared = [aliased_input(op, k) for k, _ in enumerate(op.outputs)]
        self._calls = calls_functions(op)
        self._integers = bool(op.outputs) and (op.outputs[0].dtype.is_integer or op.outputs[0].dtype.is_bool)

    @property
    def passes_on(self) -> bool:
        """Whether each output is one of the inputs."""
        return bool(self._shared) and None not in self._shared

    def run(self, buffers: Buffers, inputs: Sequence[Operand], own: bool) -> list[Operand]:
        """The outputs; ``own`` says that no other op reads the first list, which is then changed in place."""
        if self._source:
            size = 0 if self.type == "Const" else self.sizes[0]
            return [buffers.new(size or 0, self.constant)]
        if self.passes_on:
            return [inputs[k or 0] for k in self._shared]
        if self._on_lists:
            if self.type not in _ON_LISTS:
                raise NotCountedError
            return _ON_LISTS[self.type](self, buffers, inputs, own)
        if self._calls:
            raise NotCountedError
        numbers = self._numbers(inputs) if self._integers else None
        return [buffers.new(_known(size), numbers) for size in self.sizes]

    def _numbers(self, inputs: Sequence[Operand]) -> _Numbers:
        known = [v.numbers for v in inputs if isinstance(v, Item)]
        if self.type == "LogicalAnd" and any(x is not None and not np.any(x) for x in known):
            return np.asarray(False)  # also if the other input is not known
        if any(x is None for x in known):
            return None
        compute = _ARITHMETIC.get(self.type)
        return None if compute is None else compute(*known)

    def item(self, buffers: Buffers, item: Operand | None, output: int) -> Operand:
        """An item of a list as an output; zeros if it is not set yet."""
        if isinstance(item, TensorList):
            return item.copy()
        return buffers.new(_known(self.sizes[output])) if item is None else item


def _reserve(_op: FollowedOp, _buffers: Buffers, inputs: Sequence[Operand], _own: bool) -> list[Operand]:
    return [TensorList([None] * _number(inputs[1]))]


def _from_tensor(op: FollowedOp, buffers: Buffers, inputs: Sequence[Operand], _own: bool) -> list[Operand]:
    if not op.length:
        raise NotCountedError
    size = _item(inputs[0]).size // op.length
    return [TensorList([buffers.new(size) for _ in range(op.length)])]


def _push_back(_op: FollowedOp, _buffers: Buffers, inputs: Sequence[Operand], own: bool) -> list[Operand]:
    found = _to_change(inputs[0], own)
    found.append(_kept(inputs[1]))
    return [found]


def _pop_back(op: FollowedOp, buffers: Buffers, inputs: Sequence[Operand], own: bool) -> list[Operand]:
    found = _to_change(inputs[0], own)
    if not found.items:
        raise NotCountedError
    return [found, op.item(buffers, found.pop(), 1)]


def _set_item(op: FollowedOp, _buffers: Buffers, inputs: Sequence[Operand], own: bool) -> list[Operand]:
    at, found = _number(inputs[1]), _to_change(inputs[0], own)
    if op.resizes:
        found.items.extend([None] * (at + 1 - len(found.items)))
    if not 0 <= at < len(found.items):
        raise NotCountedError
    found.put(at, _kept(inputs[2]))
    return [found]


def _get_item(op: FollowedOp, buffers: Buffers, inputs: Sequence[Operand], _own: bool) -> list[Operand]:
    items, at = _list(inputs[0]).items, _number(inputs[1])
    if not 0 <= at < len(items):
        raise NotCountedError
    return [op.item(buffers, items[at], 0)]


def _together(op: FollowedOp, buffers: Buffers, inputs: Sequence[Operand], _own: bool) -> list[Operand]:
    size, *others = op.sizes
    whole = sum(item.size for item in items_of(_list(inputs[0]))) if size is None else size
    return [buffers.new(whole), *(buffers.new(_known(size)) for size in others)]


def _length(op: FollowedOp, buffers: Buffers, inputs: Sequence[Operand], _own: bool) -> list[Operand]:
    return [buffers.new(_known(op.sizes[0]), np.asarray(len(_list(inputs[0]).items)))]


def _zeros(_op: FollowedOp, buffers: Buffers, inputs: Sequence[Operand], _own: bool) -> list[Operand]:
    return [TensorList([_fresh(buffers, item) for item in _list(inputs[0]).items])]


def _fresh(buffers: Buffers, held: Operand | None) -> Operand | None:
    """A value like another one, in buffers of its own."""
    if isinstance(held, TensorList):
        return TensorList([_fresh(buffers, item) for item in held.items])
    return None if held is None else buffers.new(held.size)


def _sum(_op: FollowedOp, buffers: Buffers, inputs: Sequence[Operand], _own: bool) -> list[Operand]:
    """A list of sums; an item that only one list has is passed on."""
    lists = list(map(_list, inputs))
    if len({len(held.items) for held in lists}) != 1:
        raise NotCountedError
    items: list[Item | TensorList | None] = []
    for column in zip(*(held.items for held in lists), strict=True):
        some = [item for item in column if item is not None]
        items.append(buffers.new(_item(some[0]).size) if len(some) > 1 else next(iter(some), None))
    return [TensorList(items)]


_ON_LISTS: Mapping[str, Callable[[FollowedOp, Buffers, Sequence[Operand], bool], list[Operand]]] = {
    "EmptyTensorList": lambda *_: [TensorList([])],
    "TensorListReserve": _reserve,
    "TensorListFromTensor": _from_tensor,
    "TensorListPushBack": _push_back,
    "TensorListPopBack": _pop_back,
    "TensorListSetItem": _set_item,
    "TensorListGetItem": _get_item,
    "TensorListStack": _together,
    "TensorListConcatV2": _together,
    "TensorListLength": _length,
    "TensorListElementShape": lambda op, buffers, _inputs, _own: [buffers.new(op.sizes[0] or 0)],
    "ZerosLike": _zeros,
    "AddN": _sum,
    "AddV2": _sum,
}
"""Ops that make or read lists; the last argument says whether the first list may be changed in place."""


def _list(value: Operand) -> TensorList:
    if not isinstance(value, TensorList):
        raise NotCountedError
    return value


def _to_change(value: Operand, own: bool) -> TensorList:
    """A list to change: a copy, if other ops read the list."""
    held = _list(value)
    return held if own else held.copy()


def _kept(value: Operand) -> Operand:
    """A value to put into a list; a list is copied first, because it may be changed in its place later."""
    return value.copy() if isinstance(value, TensorList) else value


def _item(value: Operand) -> Item:
    if not isinstance(value, Item):
        raise NotCountedError
    return value


def _number(value: Operand) -> int:
    numbers = _item(value).numbers
    if numbers is None:
        raise NotCountedError
    return int(numbers)


def _bytes(tensor: tf.Tensor) -> int | None:
    """Bytes of a tensor; None if its shape is not known."""
    if tensor.dtype == tf.resource:
        return 0
    return nbytes(tensor) if tensor.shape.is_fully_defined() else None


def _known(size: int | None) -> int:
    if size is None:
        raise NotCountedError
    return size


def _static(op: tf.Operation) -> _Numbers:
    output = op.outputs[0]
    followed = output.dtype.is_integer or output.dtype.is_bool
    few = (output.shape.num_elements() or 0) <= _MOST_NUMBERS
    return tf.get_static_value(output) if followed and few else None

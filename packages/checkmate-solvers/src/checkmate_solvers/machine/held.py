"""A state as one pointer, for machine code.

Numba would pass a tuple array by array, or count references to an object that holds the arrays: either takes
longer than most functions of the search. The pointer is to ``State.table``, which says where the arrays are.
That does not change while machine code runs, so LLVM may read it ahead of loops.

No index may be negative: Numba counts such an index from the end, and asks of each whether it is, which takes
a fifth of the time of the search. Here nothing asks.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import numba
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.np import arrayobj

from checkmate_solvers.machine.arrays import TABLE_WIDTH

__all__ = ["held"]

_modules = numba.config, extending, arrayobj, cgutils
_config, _extending, _arrays, _pointers = (cast("Any", module) for module in _modules)
_WORD = ir.IntType(64)


class _Array(types.Array):
    """The type of an array whose indices are not negative."""


_extending.register_model(_Array)(_extending.models.ArrayModel)


def _place(context: Any, builder: Any, array_type: _Array, array: Any, index: Any) -> Any:
    """The address of an item; ``index`` is one word, or a tuple of them."""
    indices = [index] if index.type == _WORD else _pointers.unpack_tuple(builder, index)
    array = context.make_array(array_type)(context, builder, array)
    return _pointers.get_item_pointer(context, builder, array_type, array, indices, wraparound=False)


def _read(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array_type = signature.args[0]
    place = _place(context, builder, array_type, *arguments)
    return context.unpack_value(builder, array_type.dtype, place)


def _write(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
    array_type, _, value_type = signature.args
    array, index, value = arguments
    value = context.cast(builder, value, value_type, array_type.dtype)
    context.pack_value(builder, array_type.dtype, value, _place(context, builder, array_type, array, index))


for _index_type in (types.Integer, types.BaseTuple):
    _extending.lower_builtin(operator.getitem, _Array, _index_type)(_read)
    _extending.lower_builtin(operator.setitem, _Array, _index_type, types.Any)(_write)


class _HeldType(types.Type):
    """The type of the pointer."""

    def __init__(self, state: Any) -> None:
        super().__init__(name="Held")  # short, as all functions have it in their names
        arrays = zip(state.fields, state.types, strict=True)
        self.arrays = {name: _Array(array.dtype, array.ndim, array.layout) for name, array in arrays}


_extending.register_model(_HeldType)(_extending.models.OpaqueModel)


@_extending.infer_getattr
class _Attributes(AttributeTemplate):
    """The types of its attributes."""

    key = _HeldType

    def resolve(self, value: Any, attr: str) -> Any:
        return value.arrays.get(attr)


def _attribute(context: Any, builder: Any, pointer_type: _HeldType, pointer: Any, name: str) -> Any:
    """The array of one row of the table; nothing counts references to it."""
    array_type, row = pointer_type.arrays[name], list(pointer_type.arrays).index(name)
    table = builder.bitcast(pointer, _WORD.as_pointer())
    words = []
    for column in range(1 + array_type.ndim):
        words.append(builder.load(builder.gep(table, [_WORD(row * TABLE_WIDTH + column)])))
        words[-1].set_metadata("invariant.load", builder.module.add_metadata([]))
    address, *shape = words
    itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    strides = [*(builder.mul(length, _WORD(itemsize)) for length in shape[1:]), _WORD(itemsize)]
    array = context.make_array(array_type)(context, builder)
    data = builder.inttoptr(address, array.data.type)
    _arrays.populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()


_extending.lower_getattr_generic(_HeldType)(_attribute)


def _pointer_to(_: Any, state: Any) -> Any:
    def pointer(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        place = state.fields.index("table")
        table = builder.extract_value(arguments[0], place)
        array = context.make_array(state.types[place])(context, builder, table)
        return builder.bitcast(array.data, ir.IntType(8).as_pointer())

    return _HeldType(state)(state), pointer


held: Any = (lambda state: state) if _config.DISABLE_JIT else _extending.intrinsic(_pointer_to)
"""In machine code: the pointer for a state that outlives it. Interpreted: that state."""

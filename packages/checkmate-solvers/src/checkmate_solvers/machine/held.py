"""A state as one pointer, for machine code.

Numba would pass a tuple array by array, or count references to an object that holds the arrays: either takes
longer than most functions of the search. The pointer is to ``State.table``, which says where the arrays are.
That does not change while machine code runs, so LLVM may read it ahead of loops.
"""

from __future__ import annotations

from typing import Any, cast

import numba
from llvmlite import ir
from numba import extending, types
from numba.core.typing.templates import AttributeTemplate
from numba.np import arrayobj

from checkmate_solvers.machine.arrays import TABLE_WIDTH

__all__ = ["held"]

_config, _extending, _arrays = (cast("Any", module) for module in (numba.config, extending, arrayobj))
_WORD = ir.IntType(64)


class _HeldType(types.Type):
    """The type of the pointer."""

    def __init__(self, state: Any) -> None:
        super().__init__(name="Held")  # short, as all functions have it in their names
        self.arrays = dict(zip(state.fields, state.types, strict=True))


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

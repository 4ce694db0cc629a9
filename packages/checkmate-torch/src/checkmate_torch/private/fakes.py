"""Fake tensors, which have shapes and no memory, and symbolic shapes: sizes that change from call to call.

The symbolic shapes take long to import, so the functions that need them import them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException as ReadOnHostError
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from checkmate import UnsupportedModelError

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.value_ranges import ValueRanges

_LARGEST_SIZE = 2**40
"""A larger maximum counts as none: sizes that depend on data get the largest integer, or a power of it."""
_declared: WeakKeyDictionary[ShapeEnv, Mapping[sympy.Symbol, int]] = WeakKeyDictionary()
"""The declared maxima of each capture."""

__all__ = [
    "DataDependentError",
    "FakeTensor",
    "FakeTensorMode",
    "ReadOnHostError",
    "TorchDispatchMode",
    "allowed_maximum",
    "as_if_eager",
    "current_value",
    "declared_maximum",
    "depends_on_data",
    "fake_mode",
    "fake_mode_of",
    "formula",
    "limit",
    "sole_symbol",
    "specialized",
    "symbols_in",
    "unfaked",
    "untraced",
    "value_at",
    "without_guards",
]


class DataDependentError(UnsupportedModelError):
    """A size depends on data, and has no maximum."""


class _Mode(FakeTensorMode):  # type: ignore[no-untyped-call]
    def __deepcopy__(self, _memo: object) -> FakeTensorMode:
        """Itself: PyTorch before 2.13 copies the mode of each fake tensor that it copies."""
        return self


def fake_mode() -> FakeTensorMode:
    """A mode in which new tensors are fake; ops may also take real ones."""
    return _Mode(allow_non_fake_inputs=True)


def fake_mode_of(values: Sequence[object]) -> FakeTensorMode | None:
    """The fake mode that is on, else the mode of the fake tensors among the values; None without either."""
    return torch._guards.detect_fake_mode(values)


unfaked = unset_fake_temporarily
"""Context manager: tensors made in its block are real, although a fake mode is on outside."""


def untraced() -> AbstractContextManager[object]:
    """Context manager: code in its block is not part of the capture that goes on outside."""
    return torch._guards.tracing(None)


@contextmanager
def as_if_eager() -> Iterator[None]:
    """In the block, code that asks ``torch.compiler.is_compiling`` behaves as outside of a compilation."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def without_guards(values: Iterable[object]) -> AbstractContextManager[object]:
    """Context manager: what its block compares of sizes among the values is not required of later calls."""
    sizes = (x for x in values if isinstance(x, torch.SymInt))
    size = next(sizes, None)
    return nullcontext() if size is None else size.node.shape_env.suppress_guards()


def symbols_in(size: torch.SymInt) -> set[sympy.Symbol]:
    """The symbols in the formula of a size."""
    return set(size.node.expr.free_symbols)


def formula(size: int | torch.SymInt) -> object:
    """A size as a number or a formula of symbols: equal formulas have equal values in every call."""
    if not isinstance(size, torch.SymInt):
        return size
    return int(size.node.expr) if size.node.expr.is_Integer else size.node.expr


def depends_on_data(symbol: sympy.Symbol) -> bool:
    """Whether the value of a symbol is known only after the op that makes a tensor of this size."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return symbol_is_type(symbol, SymT.UNBACKED_INT)


def sole_symbol(size: object) -> sympy.Symbol | None:
    """The symbol of a size that is a single symbol; None if it is a number or a formula."""
    return size.node.expr if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol else None


def declared_maximum(size: torch.SymInt, symbol: sympy.Symbol) -> int | None:
    """The largest value of a symbol of a size that ``mark_dynamic`` declares; None if there is none.

    If the symbol depends on data, the largest that a check or an op allows.
    """
    shapes = size.node.shape_env
    if depends_on_data(symbol):
        return allowed_maximum(size, symbol)
    if shapes not in _declared:
        _declared[shapes] = dict(_declarations(shapes))
    return _declared[shapes].get(symbol)


def _declarations(shapes: ShapeEnv) -> Iterator[tuple[sympy.Symbol, int]]:
    """The symbols of inputs whose maximum ``mark_dynamic`` declares, with the maximum."""
    for tracked in shapes.tracked_fakes or ():
        constraints = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        for size, constraint in zip(getattr(tracked.fake, "shape", ()), constraints, strict=False):
            most = _finite(constraint.vr) if hasattr(constraint, "vr") else None
            if most is not None and (symbol := sole_symbol(size)) is not None:
                yield symbol, most


def allowed_maximum(size: torch.SymInt, symbol: sympy.Symbol) -> int | None:
    """The largest value of a symbol of a size that all guards and checks so far allow; None if any."""
    known = size.node.shape_env.var_to_range.get(symbol)
    return None if known is None else _finite(known)


def _finite(values: ValueRanges[Any]) -> int | None:
    import sympy
    from torch.utils._sympy.numbers import int_oo

    most = values.upper
    return None if most in (int_oo, sympy.oo) or most > _LARGEST_SIZE else int(most)


def current_value(size: torch.SymInt, symbol: sympy.Symbol) -> int:
    """The value of a symbol of a size in this call, without a guard.

    Raises:
        DataDependentError: if it depends on data.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    shapes = size.node.shape_env
    hint = shapes.guarding_hint_or_throw if hasattr(shapes, "guarding_hint_or_throw") else shapes.size_hint
    try:
        return int(hint(symbol))
    except GuardOnDataDependentSymNode as error:
        raise DataDependentError(
            f"a size depends on data ({symbol} is not known before), so that bytes can't be planned: "
            "bound it, torch._check(n <= most), or move that code out of the model"
        ) from error


def limit(size: torch.SymInt, symbol: sympy.Symbol, most: int) -> None:
    """Add a guard: the graph is only called where a symbol of a size is at most ``most``."""
    import sympy

    size.node.shape_env.evaluate_expr(sympy.Le(symbol, most))


def value_at(size: torch.SymInt, values: Mapping[sympy.Symbol, int]) -> int:
    """The size for given values of its symbols."""
    return int(size.node.expr.xreplace(values))


def specialized(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool:
    """The number that a symbol represents in this call, guarded: another number means another graph."""
    node = value.node
    if isinstance(value, torch.SymInt):
        return int(node.guard_int("", 0))
    if isinstance(value, torch.SymFloat):
        return float(node.guard_float("", 0))
    return bool(node.guard_bool("", 0))

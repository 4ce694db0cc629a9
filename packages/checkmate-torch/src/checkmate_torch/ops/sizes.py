"""Sizes that may change from call to call: the sizes that a plan is made for, and the calls that it covers.

    largest(s) = the declared maximum of s, else the largest size so far
    largest(s · t) = largest(s) · largest(t)

A plan is made for the largest sizes; smaller ones need less memory. For a size without a declared maximum, a
guard gives calls with larger sizes a plan of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule, Node

from checkmate import UnsupportedModelError
from checkmate_torch.private import (
    allowed_maximum,
    current_value,
    declared_maximum,
    limit,
    sole_symbol,
    symbols_in,
    value_at,
)

if TYPE_CHECKING:
    import sympy

__all__ = [
    "Sizes",
    "are_larger",
    "are_within",
    "bounded",
    "covers",
    "is_symbol",
    "largest",
    "planned_sizes",
    "planning_for",
    "planning_for_present",
    "present_sizes",
    "shown_inputs",
    "typical",
]

Sizes = tuple[tuple[int, ...], ...]
"""The shapes of the tensors among the inputs of a graph, in order."""
_TOGETHER = 1.25
"""A plan is for the largest of each size if their product is at most this many times one that was seen."""
_earlier: ContextVar[Mapping[sympy.Symbol, int]] = ContextVar("_earlier", default=MappingProxyType({}))


def is_symbol(node: Node) -> bool:
    """Whether the value of a node is a number that is known only when the graph runs."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def largest(size: int | torch.SymInt) -> int:
    """The size to plan for; no guard is added.

    Raises:
        UnsupportedModelError: if it depends on data and has no maximum.
    """
    if not isinstance(size, torch.SymInt):
        return size
    values = {}
    for symbol in symbols_in(size):
        most = declared_maximum(size, symbol)
        values[symbol] = _so_far(size, symbol) if most is None else most
    return value_at(size, values)


def typical(value: object) -> object:
    """An argument to time an op with: for a symbol the largest number planned for, or 1 without maximum."""
    try:
        return largest(value) if isinstance(value, torch.SymInt) else value
    except UnsupportedModelError:
        return 1


def bounded(size: int | torch.SymInt) -> int:
    """The size to plan for, with a guard: the graph is only called with sizes up to it."""
    if isinstance(size, torch.SymInt):
        for symbol in symbols_in(size):
            if declared_maximum(size, symbol) is None:
                limit(size, symbol, _so_far(size, symbol))
    return largest(size)


def shown_inputs(gm: GraphModule) -> list[object]:
    """The inputs of a captured graph as Dynamo shows them, with sizes that may change as symbols."""
    return [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]


def planned_sizes(inputs: Sequence[object]) -> Sizes:
    """The sizes that a graph with these inputs is planned for."""
    return tuple(tuple(map(largest, shape)) for shape in _shapes(inputs))


def present_sizes(inputs: Sequence[object]) -> Sizes:
    """The sizes of this call, where declared maxima count as its sizes."""
    with planning_for_present():
        return planned_sizes(inputs)


def are_larger(inputs: Sequence[object]) -> bool:
    """Whether a graph with these inputs is planned for larger sizes than those of this call."""
    return planned_sizes(inputs) != present_sizes(inputs)


def covers(inputs: Sequence[object], earlier: Sizes) -> bool:
    """Whether a graph with these inputs, planned for ``earlier`` sizes, takes inputs of those sizes, too."""
    pairs = _pairs(inputs, earlier)
    return bool(pairs) and all(
        size == most if isinstance(size, int) else sole_symbol(size) is not None for size, most in pairs
    )


def are_within(sizes: Sizes, others: Sizes) -> bool:
    """Whether ``sizes`` has the same ranks as ``others``, and no larger size."""
    return list(map(len, sizes)) == list(map(len, others)) and all(
        size <= most for pair in zip(sizes, others, strict=True) for size, most in zip(*pair, strict=True)
    )


@contextmanager
def planning_for(
    inputs: Sequence[object], earlier: Sequence[Sizes], *, ahead: bool = False
) -> Iterator[None]:
    """Within the block, plan for the sizes of this call and for those of earlier graphs.

    That is for the largest of each size, except where the largest never came together: 32 texts of 64 words
    and 8 texts of 256 words have a plan each, and none is made for 32 texts of 256 words.

    Args:
        inputs: of the graph, as Dynamo shows them.
        earlier: the sizes of earlier graphs.
        ahead: whether to plan for twice the sizes if they have grown, as they may grow further.
    """
    values = present = _values(inputs, present_sizes(inputs))
    for other in sorted((_values(inputs, sizes) for sizes in earlier), key=_volume, reverse=True):
        both = {symbol: max(size, other.get(symbol, 0)) for symbol, size in values.items()}
        if _volume(both) <= _TOGETHER * max(_volume(values), _volume(other)):
            values = both
    if ahead and values == present:
        values = {symbol: 2 * size for symbol, size in values.items()}
    with _planning_for(values):
        yield


def planning_for_present() -> AbstractContextManager[None]:
    """Within the block, plan for the sizes of this call, whatever sizes earlier graphs had."""
    return _planning_for({})


@contextmanager
def _planning_for(values: Mapping[sympy.Symbol, int]) -> Iterator[None]:
    token = _earlier.set(values)
    try:
        yield
    finally:
        _earlier.reset(token)


def _shapes(inputs: Sequence[object]) -> list[torch.Size]:
    return [x.shape for x in inputs if isinstance(x, torch.Tensor)]


def _pairs(inputs: Sequence[object], sizes: Sizes) -> list[tuple[int | torch.SymInt, int]]:
    """Each size of the inputs with the one in ``sizes``; none if the ranks differ."""
    shapes = _shapes(inputs)
    if list(map(len, shapes)) != list(map(len, sizes)):
        return []
    return [
        pair for shape, known in zip(shapes, sizes, strict=True) for pair in zip(shape, known, strict=True)
    ]


def _values(inputs: Sequence[object], sizes: Sizes) -> dict[sympy.Symbol, int]:
    """The value of each symbol among the sizes of the inputs, if the inputs have the given sizes."""
    values: dict[sympy.Symbol, int] = {}
    for size, most in _pairs(inputs, sizes):
        if (symbol := sole_symbol(size)) is not None:
            values[symbol] = max(values.get(symbol, 0), most)
    return values


def _volume(values: Mapping[sympy.Symbol, int]) -> int:
    return math.prod(values.values()) if values else 0


def _so_far(size: torch.SymInt, symbol: sympy.Symbol) -> int:
    """The largest value so far of a symbol of a size, among those for which the graph is right."""
    now, earlier = current_value(size, symbol), _earlier.get().get(symbol, 0)
    allowed = allowed_maximum(size, symbol)
    return max(now, earlier if allowed is None else min(earlier, allowed))

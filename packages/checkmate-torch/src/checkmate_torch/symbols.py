"""Sizes that may change from call to call: the sizes that a plan is made for, and the calls that it covers.

    largest(s) = the declared maximum of s, else its size now      largest(s · t) = largest(s) · largest(t)

A plan is made for the largest sizes; smaller ones need less memory. For a size without a declared maximum, a
guard gives calls with larger sizes a plan of their own.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from checkmate_torch.private import current_value, declared_maximum, limit, symbols_in, value_at

__all__ = ["bounded", "is_symbol", "largest"]


def is_symbol(node: Node) -> bool:
    """Whether the value of a node is a number that is known only when the graph runs."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def largest(size: int | torch.SymInt) -> int:
    """The number that is planned for; no guard is added.

    Raises:
        ValueError: if it depends on data and has no maximum.
    """
    if not isinstance(size, torch.SymInt):
        return size
    values = {}
    for symbol in symbols_in(size):
        most = declared_maximum(size, symbol)
        values[symbol] = current_value(size, symbol) if most is None else most
    return value_at(size, values)


def bounded(size: int | torch.SymInt) -> int:
    """The number that is planned for, guarded: the graph is only called with sizes up to it.

    Raises:
        ValueError: if it depends on data and has no maximum.
    """
    if isinstance(size, torch.SymInt):
        for symbol in symbols_in(size):
            if declared_maximum(size, symbol) is None:
                limit(size, symbol, current_value(size, symbol))
    return largest(size)

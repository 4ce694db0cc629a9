"""Sizes that may change from call to call: which of them a plan is made for, and how far it holds.

    largest(s) = the declared maximum of s, else its size now      largest(s · t) = largest(s) · largest(t)

A plan is made for the largest sizes. Where none is declared, a guard keeps calls with larger sizes out: they
get a plan of their own. Smaller ones need less.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from checkmate_torch.private import current_value, declared_maximum, limit, symbols_in, value_at

__all__ = ["bounded", "is_symbol", "largest"]


def is_symbol(node: Node) -> bool:
    """Whether the value of a node is a number that is known when the graph runs, not before."""
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
    """The number that is planned for; from now on the graph is only called with sizes up to it.

    Raises:
        ValueError: if it depends on data and has no maximum.
    """
    if isinstance(size, torch.SymInt):
        for symbol in symbols_in(size):
            if declared_maximum(size, symbol) is None:
                limit(size, symbol, current_value(size, symbol))
    return largest(size)

"""Sizes that may change from call to call: which of them a plan is made for, and how far it holds.

    largest(s) = the declared maximum of s, else its size now      largest(s · t) = largest(s) · largest(t)

A plan is made for the largest sizes. Where none is declared, a guard keeps calls with larger sizes out: they
get a plan of their own. Smaller ones need less.
"""

from __future__ import annotations

import sympy
import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils._sympy.numbers import int_oo

__all__ = ["bounded", "is_symbol", "largest"]


def is_symbol(node: Node) -> bool:
    """Whether the value of a node is a number that is known when the graph runs, not before."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def largest(size: int | torch.SymInt) -> int:
    """The number that is planned for; no guard is added.

    Raises:
        ValueError: if nothing bounds it: it depends on data.
    """
    return _value(size) if isinstance(size, torch.SymInt) else size


def bounded(size: int | torch.SymInt) -> int:
    """The number that is planned for; from now on the graph is only called with sizes up to it.

    Raises:
        ValueError: if nothing bounds it: it depends on data.
    """
    if isinstance(size, torch.SymInt):
        env: ShapeEnv = size.node.shape_env
        for symbol in size.node.expr.free_symbols:
            if not _has_maximum(env, symbol):
                env.evaluate_expr(sympy.Le(symbol, _now(env, symbol)))
    return largest(size)


def _value(size: torch.SymInt) -> int:
    env: ShapeEnv = size.node.shape_env
    expression = size.node.expr
    at = {
        symbol: env.var_to_range[symbol].upper if _has_maximum(env, symbol) else _now(env, symbol)
        for symbol in expression.free_symbols
    }
    return int(expression.xreplace(at))


def _has_maximum(env: ShapeEnv, symbol: sympy.Symbol) -> bool:
    known = env.var_to_range.get(symbol)
    return known is not None and known.upper not in (int_oo, sympy.oo)


def _now(env: ShapeEnv, symbol: sympy.Symbol) -> int:
    try:
        return int(env.guarding_hint_or_throw(symbol))
    except GuardOnDataDependentSymNode as error:
        raise ValueError(f"{symbol} is not known before") from error

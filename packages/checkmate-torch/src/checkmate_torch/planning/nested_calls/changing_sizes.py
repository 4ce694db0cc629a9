"""The bytes of a call's tensors for the sizes of one run: plans are made for the largest.

tensor t ↦ formula of symbols s₁, s₂ …      run ↦ values of s₁, s₂ …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeGuard

import torch

from checkmate import DFGraph
from checkmate_torch.ops.sizes import is_symbol, largest
from checkmate_torch.ops.storages import rounded, shown_by
from checkmate_torch.private import sole_symbol, symbols_in, value_at
from checkmate_torch.tracing.traced_graph import TracedGraph

if TYPE_CHECKING:
    import sympy

__all__ = ["ChangingSizes"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangingSizes:
    """The sizes of a traced graph that may change.

    Attributes:
        positions: of the sizes among the arguments of forward → their symbols.
        formulas: tensor → its bytes, and its device.
    """

    positions: Mapping[int, sympy.Symbol] = field(default_factory=dict)
    formulas: Mapping[int, tuple[torch.SymInt, torch.device]] = field(default_factory=dict)

    @classmethod
    def of(cls, traced: TracedGraph) -> Self:
        """Those of a graph, where plans are made for the same sizes as when it was traced."""
        numbers = {k: sole_symbol(n.meta["val"]) for k, n in enumerate(traced.primals) if is_symbol(n)}
        positions = {k: symbol for k, symbol in numbers.items() if symbol is not None}
        formulas, known = {}, set(positions.values())
        for t, node in traced.source_of.items():
            for x in shown_by(node):
                size: int | torch.SymInt = x.untyped_storage().nbytes()
                if _changes(size, known) and rounded(largest(size), x.device) == traced.graph.tensors[t].size:
                    formulas[t] = size, x.device
        return cls(positions=positions, formulas=formulas)

    def values(self, args: Sequence[object]) -> tuple[int, ...]:
        """The values of the symbols in a run with these arguments."""
        return tuple(int(args[k]) for k in self.positions)  # type: ignore[call-overload]

    def applied(self, graph: DFGraph, values: Sequence[int]) -> DFGraph:
        """The graph with the bytes of a run; costs and workspaces stay those of the largest sizes."""
        if not values:
            return graph
        known = dict(zip(self.positions.values(), values, strict=True))
        tensors = list(graph.tensors)
        for t, (size, device) in self.formulas.items():
            tensors[t] = replace(tensors[t], size=rounded(value_at(size, known), device))
        return replace(graph, tensors=tuple(tensors))


def _changes(size: int | torch.SymInt, symbols: Set[sympy.Symbol]) -> TypeGuard[torch.SymInt]:
    """Whether a size is a formula of some symbols alone."""
    return isinstance(size, torch.SymInt) and symbols_in(size) <= symbols

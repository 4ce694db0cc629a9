"""Values that depend on a graph alone: computed once, kept as long as the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from checkmate.model.graph import DFGraph

__all__ = ["derived"]

_Fact = TypeVar("_Fact")


def derived(function: Callable[[DFGraph], _Fact]) -> Callable[[DFGraph], _Fact]:
    """Keep the result of ``function`` with the graph, which is immutable; the result must be, too."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(graph: DFGraph) -> _Fact:
        facts = graph.__dict__
        if name not in facts:
            facts[name] = function(graph)
        fact: _Fact = facts[name]
        return fact

    return kept

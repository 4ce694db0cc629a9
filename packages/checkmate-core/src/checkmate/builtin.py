"""The built-in plugin: registers what core ships like any third party's plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from checkmate.plugins.hookspecs import hookimpl
from checkmate.plugins.specs import SolverSpec

__all__ = ["checkmate_register_solvers"]


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """The heuristics: the best of them first."""
    return [
        SolverSpec(
            name="heuristics",
            summary="the best of the built-in heuristics",
            load=_lazily("heuristics.best", "BestHeuristic"),
        ),
        SolverSpec(
            name="first-fit",
            summary="any schedule that fits, quickly",
            load=_lazily("heuristics.first_fit", "FirstFit"),
        ),
        SolverSpec(
            name="keep-all",
            summary="compute everything once: no recomputation",
            load=_lazily("heuristics.keep_all", "KeepAll"),
        ),
        SolverSpec(
            name="chen-sqrt-n",
            summary="keep every k-th forward output, k around sqrt(n)",
            load=_lazily("heuristics.chen", "ChenSqrtN"),
            cite="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
        ),
        SolverSpec(
            name="evict-belady",
            summary="when memory is full, evict what is read last",
            load=_lazily("heuristics.eviction", "StaticEviction", rule="belady"),
            cite="Belady 1966, A study of replacement algorithms for a virtual-storage computer",
        ),
        SolverSpec(
            name="evict-dtr",
            summary="when memory is full, evict what is large, stale and cheap to recompute",
            load=_lazily("heuristics.eviction", "StaticEviction", rule="dtr"),
            cite="Kirisame et al. 2021, Dynamic Tensor Rematerialization, arXiv:2006.09616",
        ),
    ]


def _lazily(module: str, name: str, **settings: object) -> Callable[[], Any]:
    """A thunk that imports ``checkmate.<module>`` only when it is called, and makes ``name(**settings)``."""
    return lambda: getattr(import_module(f"checkmate.{module}"), name)(**settings)

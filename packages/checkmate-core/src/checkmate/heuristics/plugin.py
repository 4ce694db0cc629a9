"""The built-in plugin: registers the heuristics of this package like any third party's solvers."""

from __future__ import annotations

from checkmate.plugins.hookspecs import hookimpl
from checkmate.plugins.specs import Solver, SolverSpec

__all__ = ["checkmate_register_solvers"]


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """Keep-all, Chen √n, two eviction rules, the best of them, and any that fits."""
    return [
        SolverSpec(name="heuristics", summary="the best of the built-in heuristics", load=_best),
        SolverSpec(name="first-fit", summary="any schedule that fits, quickly", load=_first_fit),
        SolverSpec(name="keep-all", summary="compute everything once: no recomputation", load=_keep_all),
        SolverSpec(
            name="chen-sqrt-n",
            summary="keep every k-th forward output, k around sqrt(n)",
            load=_chen,
            cite="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
        ),
        SolverSpec(
            name="evict-belady",
            summary="when memory is full, evict what is read last",
            load=_belady,
            cite="Belady 1966, A study of replacement algorithms for a virtual-storage computer",
        ),
        SolverSpec(
            name="evict-dtr",
            summary="when memory is full, evict what is large, stale and cheap to recompute",
            load=_dtr,
            cite="Kirisame et al. 2021, Dynamic Tensor Rematerialization, arXiv:2006.09616",
        ),
    ]


def _best() -> Solver:
    from checkmate.heuristics.best import BestHeuristic

    return BestHeuristic()


def _first_fit() -> Solver:
    from checkmate.heuristics.first_fit import FirstFit

    return FirstFit()


def _keep_all() -> Solver:
    from checkmate.heuristics.keep_all import KeepAll

    return KeepAll()


def _chen() -> Solver:
    from checkmate.heuristics.chen import ChenSqrtN

    return ChenSqrtN()


def _belady() -> Solver:
    from checkmate.heuristics.eviction import StaticEviction

    return StaticEviction(rule="belady")


def _dtr() -> Solver:
    from checkmate.heuristics.eviction import StaticEviction

    return StaticEviction(rule="dtr")

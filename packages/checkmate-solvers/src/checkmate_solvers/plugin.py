"""The plugin of this distribution: offers its solvers by name, and imports none of them until used."""

from __future__ import annotations

from checkmate.plugins import Solver, SolverSpec, hookimpl

__all__ = ["checkmate_register_solvers"]


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """``auto``, and the steps that it is made of."""
    return [
        SolverSpec(
            name="auto",
            summary="eviction, minimum cuts, cut MILP: the cheapest schedule found, with a proved bound",
            load=_auto,
            guarantee="bound",
            features=frozenset({"anytime"}),
        ),
        SolverSpec(
            name="min-cut",
            summary="parametric minimum cuts at single moments, repaired by eviction",
            load=_min_cut,
            guarantee="bound",
        ),
        SolverSpec(
            name="cut-milp",
            summary="a MILP over a few moments of the schedule (HiGHS), repaired by eviction",
            load=_cut_milp,
            guarantee="bound",
        ),
        SolverSpec(
            name="local-search",
            summary="ruin and recreate over sequences of ops, in machine code; reorders if it may",
            load=_local_search,
            features=frozenset({"anytime"}),
            requires=("numba",),
        ),
    ]


def _auto() -> Solver:
    from checkmate_solvers.auto import Auto

    return Auto()


def _min_cut() -> Solver:
    from checkmate_solvers.mincut import MinCut

    return MinCut()


def _cut_milp() -> Solver:
    from checkmate_solvers.cutmilp import CutMilp

    return CutMilp()


def _local_search() -> Solver:
    from checkmate_solvers.local.solver import LocalSearch

    return LocalSearch()

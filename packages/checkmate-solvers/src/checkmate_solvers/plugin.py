"""The plugin of this distribution: its solvers by name, each imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

from checkmate.plugins import Solver, SolverSpec, hookimpl

__all__ = ["checkmate_register_solvers"]

_JAIN = (
    "Jain et al.: Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020, "
    "arXiv:1910.02653"
)


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """List ``auto``, the solvers that are its steps, and the published methods."""
    return [
        SolverSpec(
            name="auto",
            summary="tightening, minimum cuts, cut MILP, local search: the cheapest, with a proved bound",
            load=_of("auto:Auto"),
            guarantee="bound",
            features=frozenset({"anytime"}),
        ),
        SolverSpec(
            name="min-cut",
            summary="parametric minimum cuts at single moments, repaired",
            load=_of("moments.min_cut:MinCut"),
            guarantee="bound",
        ),
        SolverSpec(
            name="cut-milp",
            summary="a MILP over a few moments of the schedule (HiGHS), repaired",
            load=_of("moments.cut_milp:CutMilp"),
            guarantee="bound",
        ),
        SolverSpec(
            name="local-search",
            summary="ruin and recreate over sequences of ops; reorders if it may",
            load=_of("local_search:LocalSearch"),
            features=frozenset({"anytime"}),
        ),
        SolverSpec(
            name="chain-dp",
            summary="chains only: dynamic programme over nested schedules of unequal layers",
            load=_of("chains:ChainDP"),
            cite="Beaumont, Eyraud-Dubois, Herrmann, Joly & Shilova, Optimal checkpointing for heterogeneous "
            "chains, 2019, hal-02352969; ACM TOMS 2024",
        ),
        SolverSpec(
            name="revolve",
            summary="chains only: binomial checkpointing in closed form, with the most slots that fit",
            load=_of("chains:Revolve"),
            cite="Griewank & Walther, Algorithm 799: revolve, ACM TOMS 26 (1), 2000",
        ),
        SolverSpec(
            name="checkmate-milp",
            summary="the MILP of the Checkmate paper, up to about 300 ops, and a bound for all schedules",
            load=_of("literature:CheckmateMilp"),
            guarantee="bound",
            cite=_JAIN,
        ),
        SolverSpec(
            name="checkmate-milp-scip",
            summary="the same, solved by SCIP",
            load=_checkmate_milp_scip,
            guarantee="bound",
            requires=("checkmate-solvers[ortools]",),
            cite=_JAIN,
        ),
        SolverSpec(
            name="lp-rounding",
            summary="the Checkmate paper's two-phase rounding of its relaxed MILP, repaired",
            load=_of("literature:LpRounding"),
            guarantee="bound",
            cite=_JAIN,
        ),
        SolverSpec(
            name="retention-intervals",
            summary="MOCCASIN: CP-SAT over the stretches of time for which tensors are held, two each",
            load=_of("literature:RetentionIntervals"),
            features=frozenset({"anytime"}),
            requires=("checkmate-solvers[ortools]",),
            cite="Bartan, Li, Teague, Lott & Dilkina, Moccasin: Efficient Tensor Rematerialization for "
            "Neural Networks, ICML 2023, arXiv:2304.14463",
        ),
    ]


def _of(name: str) -> Callable[[], Solver]:
    """A function that imports a solver of this distribution, given as ``"module:Class"``, and makes one."""
    return lambda: resolve_name(f"checkmate_solvers.{name}")()


def _checkmate_milp_scip() -> Solver:
    from checkmate_solvers.engines import Scip
    from checkmate_solvers.literature import CheckmateMilp

    return CheckmateMilp(backend=Scip())

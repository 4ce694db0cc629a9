"""The plugin of this distribution: its solvers by name, each imported when it is used, and a command."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from checkmate.plugins import Solver, SolverSpec, hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["checkmate_register_commands", "checkmate_register_solvers"]

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
            summary="ruin and recreate over sequences of ops, in machine code; reorders if it may",
            load=_local_search,
            features=frozenset({"anytime"}),
            requires=("numba",),
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


@hookimpl
def checkmate_register_commands(cli: click.Group) -> None:
    """Add ``checkmate warm-up``, which compiles the local search now instead of beside the first solves."""
    import click

    @cli.command
    def warm_up() -> None:
        """Compile the local search of 'auto', unless this machine has it compiled.

        It takes about half a minute. Without this command, the first solves work without the local search
        while it is compiled in the background. Run it where an image or an environment is built.

        Exit codes: 0 the local search is compiled; 2 it can't be compiled.
        """
        from checkmate_solvers.machine import compilation
        from checkmate_solvers.machine.code import machine_code

        machine_code()
        click.echo(f"The local search is compiled, in {compilation.folder()}.")


def _of(name: str) -> Callable[[], Solver]:
    """A function that imports a solver of this distribution, given as ``"module:Class"``, and makes one."""
    return lambda: resolve_name(f"checkmate_solvers.{name}")()


def _local_search() -> Solver:
    from checkmate_solvers.local_search import LocalSearch
    from checkmate_solvers.machine import code

    code.check()
    return LocalSearch()


def _checkmate_milp_scip() -> Solver:
    from checkmate_solvers.engines import Scip
    from checkmate_solvers.literature import CheckmateMilp

    return CheckmateMilp(backend=Scip())

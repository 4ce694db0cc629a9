"""A plugin whose hook has a typo: it would offer nothing, silently."""

from checkmate.heuristics import KeepAll
from checkmate.plugins import SolverSpec, hookimpl


@hookimpl
def checkmate_register_solver() -> list[SolverSpec]:
    """Should be called checkmate_register_solvers."""
    return [SolverSpec(name="typo", summary="never seen", load=KeepAll)]

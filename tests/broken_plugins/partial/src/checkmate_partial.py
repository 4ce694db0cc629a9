"""A plugin whose solver is sound and whose exporter is not: the hook for exporters returns another kind."""

from checkmate.heuristics import KeepAll
from checkmate.plugins import SolverSpec, hookimpl


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """Nothing wrong here."""
    return [SolverSpec(name="half", summary="sound", load=KeepAll)]


@hookimpl
def checkmate_register_exporters() -> list[SolverSpec]:
    """Not what the hook is for."""
    return [SolverSpec(name="picture", summary="no exporter", load=KeepAll)]

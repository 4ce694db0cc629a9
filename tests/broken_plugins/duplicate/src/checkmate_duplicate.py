"""A plugin that claims a name which another plugin has."""

from checkmate.heuristics import KeepAll
from checkmate.plugins import SolverSpec, hookimpl


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """The sample plugin offers ``luck`` too."""
    return [
        SolverSpec(name="luck", summary="not the real one", load=KeepAll),
        SolverSpec(name="own", summary="a name of its own", load=KeepAll),
    ]

"""The public door for plugin authors: specs, hooks, and lookups by name.

A plugin is a module like this one, named by an entry point of the group ``checkmate``::

    from checkmate.plugins import SolverSpec, hookimpl

    def _load():
        from everest.solver import Everest
        return Everest()

    @hookimpl
    def checkmate_register_solvers():
        return [SolverSpec(name="everest", summary="climbs", load=_load)]
"""

from __future__ import annotations

import difflib

from checkmate.errors import PluginError
from checkmate.plugins.hookspecs import hookimpl
from checkmate.plugins.loader import (
    ANYTHING,
    LoadedPlugin,
    installed_plugins,
    one_line,
    register_commands,
    reset,
)
from checkmate.plugins.specs import (
    CostModel,
    CostModelSpec,
    Executor,
    ExecutorSpec,
    Exporter,
    ExporterSpec,
    Frontend,
    FrontendSpec,
    Solver,
    SolverSpec,
    Traced,
)

__all__ = [
    "CostModel",
    "CostModelSpec",
    "Executor",
    "ExecutorSpec",
    "Exporter",
    "ExporterSpec",
    "Frontend",
    "FrontendSpec",
    "LoadedPlugin",
    "Solver",
    "SolverSpec",
    "Traced",
    "ambiguous_solvers",
    "hookimpl",
    "installed_plugins",
    "load_solver",
    "register_commands",
    "reset",
    "solver_spec",
    "solver_specs",
]


def solver_spec(name: str) -> SolverSpec:
    """The solver with this name.

    Raises:
        PluginError: if there is none (the message lists what is installed and what failed to load), or
            if several plugins offer it.

    >>> solver_spec("keep-all").guarantee
    'heuristic'
    """
    owners = _owners().get(name, [])
    if len(owners) > 1:
        raise PluginError(
            f"solver {name!r} is offered by {' and by '.join(plugin.owner for plugin, _ in owners)}: "
            "uninstall all but one, or list the plugins to load in CHECKMATE_PLUGINS"
        )
    if not owners:
        raise PluginError(_unknown(name))
    return owners[0][1]


def solver_specs() -> tuple[SolverSpec, ...]:
    """All solvers that can be asked for by name, built-ins first; ambiguous names are left out."""
    return tuple(owners[0][1] for owners in _owners().values() if len(owners) == 1)


def ambiguous_solvers() -> dict[str, tuple[str, ...]]:
    """Names that several plugins claim, with their owners."""
    return {
        name: tuple(plugin.owner for plugin, _ in owners)
        for name, owners in _owners().items()
        if len(owners) > 1
    }


def load_solver(name: str) -> Solver:
    """The solver itself: looks up the spec and calls its ``load``.

    Raises:
        PluginError: as :func:`solver_spec`; or if ``load`` fails, or gives something that can't solve.
    """
    spec = solver_spec(name)
    owner = _owners()[name][0][0].owner
    try:
        solver = spec.load()
    except ANYTHING as error:
        needs = f"; it needs: pip install {' '.join(spec.requires)}" if spec.requires else ""
        raise PluginError(f"solver {name!r} of {owner} failed to load: {one_line(error)}{needs}") from error
    if not callable(getattr(solver, "solve", None)):
        raise PluginError(f"solver {name!r} of {owner} loads a {type(solver).__name__}: it has no solve()")
    return solver


def _owners() -> dict[str, list[tuple[LoadedPlugin, SolverSpec]]]:
    owners: dict[str, list[tuple[LoadedPlugin, SolverSpec]]] = {}
    for plugin in installed_plugins():
        for spec in plugin.offers:
            if isinstance(spec, SolverSpec):
                owners.setdefault(spec.name, []).append((plugin, spec))
    return owners


def _unknown(name: str) -> str:
    installed = [spec.name for spec in solver_specs()]
    message = f"no solver {name!r}; installed: {installed}"
    if failed := [plugin.name for plugin in installed_plugins() if plugin.error is not None]:
        message += f"; failed to load: {failed} ('checkmate plugins' says why)"
    if close := difflib.get_close_matches(name, installed):
        message += f"; did you mean {' or '.join(map(repr, close))}?"
    return message

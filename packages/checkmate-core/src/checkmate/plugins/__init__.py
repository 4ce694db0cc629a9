"""The public door for plugin authors: specs, hooks, and lookups by name.

A plugin is a module like this one, named by an entry point of the group ``checkmate``::

    from checkmate.plugins import SolverSpec, hookimpl

    def _load():
        from everest.solver import Everest
        return Everest()

    @hookimpl
    def checkmate_register_solvers():
        return [SolverSpec(name="everest", summary="climbs", load=_load)]

Each kind of plugin has a registry that looks it up by name: :data:`SOLVERS`, :data:`COST_MODELS`,
:data:`FRONTENDS`, :data:`EXECUTORS`, :data:`EXPORTERS`.

>>> SOLVERS.spec("keep-all").guarantee
'heuristic'
"""

from __future__ import annotations

import os

from checkmate.errors import CheckmateError, CostError, PluginError
from checkmate.files.disk import read_file, replace_file
from checkmate.model.graph import DFGraph
from checkmate.plugins.hookspecs import hookimpl
from checkmate.plugins.loader import (
    ANYTHING,
    LoadedPlugin,
    command_errors,
    installed_plugins,
    one_line,
    register_commands,
    reset,
)
from checkmate.plugins.registry import Registry, failed_plugins
from checkmate.plugins.specs import (
    CostModel,
    CostModelSpec,
    Executor,
    ExecutorSpec,
    Exporter,
    ExporterSpec,
    Frontend,
    FrontendSpec,
    MinimumBudgetSolver,
    Observed,
    ProgramExecutor,
    RunnableProgram,
    Solver,
    SolverSpec,
    StepReport,
    Traced,
    Trial,
)
from checkmate.text.printable import examples, quoted

__all__ = [
    "COST_MODELS",
    "EXECUTORS",
    "EXPORTERS",
    "FRONTENDS",
    "SOLVERS",
    "CostModel",
    "CostModelSpec",
    "Executor",
    "ExecutorSpec",
    "Exporter",
    "ExporterSpec",
    "Frontend",
    "FrontendSpec",
    "LoadedPlugin",
    "MinimumBudgetSolver",
    "Observed",
    "ProgramExecutor",
    "Registry",
    "RunnableProgram",
    "Solver",
    "SolverSpec",
    "StepReport",
    "Traced",
    "Trial",
    "annotated",
    "checked_cost_model",
    "command_errors",
    "examples",
    "exporter_for",
    "hookimpl",
    "installed_plugins",
    "read_file",
    "register_commands",
    "replace_file",
    "reset",
]

SOLVERS: Registry[SolverSpec, Solver] = Registry(kind="solver", spec_type=SolverSpec, method="solve")
COST_MODELS: Registry[CostModelSpec, CostModel] = Registry(
    kind="cost model", spec_type=CostModelSpec, method="annotate"
)
FRONTENDS: Registry[FrontendSpec, Frontend] = Registry(
    kind="frontend", spec_type=FrontendSpec, method="trace"
)
EXECUTORS: Registry[ExecutorSpec, Executor] = Registry(kind="executor", spec_type=ExecutorSpec, method="bind")
EXPORTERS: Registry[ExporterSpec, Exporter] = Registry(
    kind="exporter", spec_type=ExporterSpec, method="write"
)


def checked_cost_model(cost_model: object) -> str | CostModel:
    """``cost_model`` itself, if it is a name or a cost model; a name is looked up when it is used.

    Raises:
        TypeError: if ``cost_model`` is neither a name nor has a method ``annotate``.
    """
    if isinstance(cost_model, str):
        return cost_model
    if isinstance(cost_model, type) or not callable(getattr(cost_model, "annotate", None)):
        raise TypeError(
            f"cost_model is {cost_model!r}, must be 'profiled', 'roofline', 'flops', the name of an "
            "installed cost model, or an object with a method annotate(graph)"
        )
    return cost_model  # type: ignore[return-value]  # structurally


def annotated(cost_model: str | CostModel, graph: DFGraph) -> DFGraph:
    """The graph with the costs of a cost model, which is given by name or as an object.

    Raises:
        PluginError: if no cost model has this name, or it fails to load.
        CostError: if the model raises it, fails, changes the graph that it was given, or returns no graph;
            names the model.
    """
    label = f"cost model {quoted(cost_model if isinstance(cost_model, str) else type(cost_model).__name__)}"
    model = COST_MODELS.load(cost_model) if isinstance(cost_model, str) else cost_model
    before = hash(graph)
    try:
        priced: object = model.annotate(graph)
    except CheckmateError:
        raise
    except ANYTHING as error:
        raise CostError(f"{label} failed: {one_line(error)}") from error
    if hash(graph) != before:
        raise CostError(f"{label} changed the graph that it was given: it must return another one")
    if not isinstance(priced, DFGraph):
        raise CostError(f"{label} returned a {type(priced).__name__}, not a DFGraph")
    return priced


def exporter_for(path: str | os.PathLike[str]) -> ExporterSpec:
    """The exporter for the suffix of a file; of several matching suffixes the longest wins.

    So ``run.perfetto.json`` goes to an exporter of ``.perfetto.json`` before one of ``.json``.

    Raises:
        PluginError: if no suffix matches (the message lists the installed ones), or if several exporters
            share the longest match.
    """
    file = os.path.basename(os.fspath(path)).lower()
    fitting = [spec for spec in EXPORTERS.specs() if file.endswith(spec.suffix.lower())]
    longest = max((len(spec.suffix) for spec in fitting), default=0)
    found = [spec for spec in fitting if len(spec.suffix) == longest]
    if len(found) > 1:
        names = " and ".join(repr(spec.name) for spec in found)
        raise PluginError(f"{file!r} could be written by the exporters {names}: ask for one by name")
    if not found:
        installed = sorted({spec.suffix for spec in EXPORTERS.specs()})
        broken = (
            f"; failed to load: {failed} ('checkmate plugins' says why)"
            if (failed := failed_plugins())
            else ""
        )
        raise PluginError(f"no exporter for {file!r}; installed suffixes: {installed}{broken}")
    return found[0]

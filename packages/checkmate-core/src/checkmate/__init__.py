"""Checkmate: train within a byte budget, by optimal tensor rematerialization.

A training step is a :class:`DFGraph`; a :class:`Schedule` says in which order to compute and free its
tensors, perhaps several times; :func:`simulate`, the judge, checks a schedule and measures its peak and cost;
:func:`solve` finds the cheapest schedule whose peak is within a budget. ``checkmate.torch`` and
``checkmate.tf2`` apply this to real models.
"""

from __future__ import annotations

from importlib import import_module, metadata, util
from typing import TYPE_CHECKING

from checkmate.analysis import Floor, floor
from checkmate.errors import (
    BudgetError,
    CheckmateError,
    CostError,
    FormatError,
    GraphError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    MissingDistributionError,
    NoPlanError,
    PlanError,
    PluginError,
    ProfilerBusyError,
    Reason,
    SolverError,
    UnsupportedModelError,
    UnsupportedScheduleError,
)
from checkmate.files.cache import ScheduleCache
from checkmate.files.serialize import read_graph, read_schedule, write_graph, write_schedule
from checkmate.model.builder import GraphBuilder
from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.model.lower import lower
from checkmate.model.plan import Plan
from checkmate.model.schedule import Compute, Free, Schedule, Step
from checkmate.model.split import Group, Part, Piece, SplitGraph, split
from checkmate.problem.problem import OnProgress, Problem, Progress, keep_all_peak
from checkmate.problem.solution import Solution, Status
from checkmate.simulate import Timeline, simulate
from checkmate.solving.api import minimum_budget, solve
from checkmate.solving.sweep import Frontier, SweepInterrupted, sweep
from checkmate.text.logs import configure as _configure_logs
from checkmate.units import Budget

if TYPE_CHECKING:
    from . import analysis as analysis
    from . import cost as cost
    from . import generators as generators
    from . import heuristics as heuristics
    from . import plugins as plugins
    from . import report as report
    from . import solving as solving
    from . import testing as testing
    from . import tf2 as tf2
    from . import torch as torch

__all__ = [
    "Budget",
    "BudgetError",
    "CheckmateError",
    "Compute",
    "CostError",
    "DFGraph",
    "Floor",
    "FormatError",
    "Free",
    "Frontier",
    "GraphBuilder",
    "GraphError",
    "Group",
    "InfeasibleBudgetError",
    "InvalidScheduleError",
    "MissingDistributionError",
    "NoPlanError",
    "OnProgress",
    "Op",
    "Part",
    "Piece",
    "Plan",
    "PlanError",
    "PluginError",
    "Problem",
    "ProfilerBusyError",
    "Progress",
    "Reason",
    "Schedule",
    "ScheduleCache",
    "Solution",
    "SolverError",
    "SplitGraph",
    "Status",
    "Step",
    "SweepInterrupted",
    "Tensor",
    "Timeline",
    "UnsupportedModelError",
    "UnsupportedScheduleError",
    "__version__",
    "floor",
    "keep_all_peak",
    "lower",
    "minimum_budget",
    "read_graph",
    "read_schedule",
    "simulate",
    "solve",
    "split",
    "sweep",
    "write_graph",
    "write_schedule",
]

__version__ = metadata.version("checkmate-core")

_configure_logs()

_FACES = {"tf2": "checkmate_tf", "torch": "checkmate_torch"}
_LAZY = ("analysis", "cost", "generators", "heuristics", "plugins", "report", "solving", "testing")

if not TYPE_CHECKING:  # hidden from type checkers, which must see a typing error in checkmate.slove

    def __getattr__(name):
        """Import a submodule at its first use, so that ``import checkmate`` loads no framework."""
        if name in _FACES or name in _LAZY:
            return import_module(f"checkmate.{name}")
        raise AttributeError(f"module 'checkmate' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names; ``torch`` and ``tf2`` only where their distributions are installed."""
    faces = [face for face, package in _FACES.items() if util.find_spec(package) is not None]
    return sorted([*__all__, *_LAZY, *faces])

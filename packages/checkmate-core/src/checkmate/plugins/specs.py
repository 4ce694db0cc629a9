"""The specs that plugins register: light, frozen; nothing heavy is imported until ``load`` is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from checkmate.graph import DFGraph
    from checkmate.problem import Problem
    from checkmate.schedule import Schedule
    from checkmate.simulate import Timeline
    from checkmate.solution import Solution

__all__ = [
    "CostModel",
    "CostModelSpec",
    "Executor",
    "ExecutorSpec",
    "Exporter",
    "ExporterSpec",
    "Frontend",
    "FrontendSpec",
    "MinimumBudgetSolver",
    "Solver",
    "SolverSpec",
    "Traced",
]


class Solver(Protocol):
    """Solves problems. A solver is a value: its fields are its settings, and it keeps no state."""

    def solve(self, problem: Problem) -> Solution:
        """Find a schedule; return ``Solution.found``, ``.infeasible`` (proved) or ``.unknown``."""
        ...


@runtime_checkable
class MinimumBudgetSolver(Solver, Protocol):
    """A solver that can also search for the least peak; for other solvers, core bisects the budget."""

    def minimum_budget(self, problem: Problem) -> Solution:
        """Find a schedule of least peak; the budget is known to be enough."""
        ...


class CostModel(Protocol):
    """Sets the cost of every op of a graph, and the cost unit."""

    def annotate(self, graph: DFGraph) -> DFGraph:
        """Return the graph with other costs; nothing else may change."""
        ...


class Traced(Protocol):
    """A traced program: its graph, and further attributes for the matching executor."""

    @property
    def graph(self) -> DFGraph:
        """The training step."""
        ...


class Frontend(Protocol):
    """Traces a program of one framework into a graph.

    ``checkmate trace --NAME MODULE:FACTORY`` passes that factory, ``cost_model=`` if the user chooses one,
    and ``on_progress=`` if ``trace`` has that parameter.
    """

    def trace(self, program: Any, /, *args: Any, **kwargs: Any) -> Traced:
        """Trace ``program``; other arguments are specific to the frontend."""
        ...


class Executor(Protocol):
    """Runs traced programs by schedules."""

    def bind(self, traced: Any, schedule: Schedule) -> Callable[..., Any]:
        """A callable that runs the traced program in the order of the schedule, with its frees."""
        ...


class Exporter(Protocol):
    """Writes a judged schedule in some format."""

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        """Write ``timeline`` to ``file``.

        Args:
            timeline: the judge's replay of the schedule.
            file: the path to write. The command line passes a path in an empty folder, which is also the
                current folder during the call; afterwards that file replaces the one that the user named.
            budget: bytes to show beside the peak, if the format has a place for it; may be smaller than the
                peak.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverSpec:
    """One solver that a plugin offers.

    Attributes:
        name: what users type for ``solver=``; unique among all installed plugins.
        summary: one line for listings.
        load: makes the solver; called only when it is used.
        guarantee: ``"exact"``, ``"bound"`` (gives a lower bound too) or ``"heuristic"``.
        features: what it can do beyond the minimum, e.g. ``"reorders"``, ``"anytime"``.
        requires: distributions that ``load`` needs, for a helpful error.
        cite: where the method was published.
    """

    name: str
    summary: str
    load: Callable[[], Solver]
    guarantee: str = "heuristic"
    features: frozenset[str] = frozenset()
    requires: tuple[str, ...] = ()
    cite: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModelSpec:
    """One cost model that a plugin offers; fields as in :class:`SolverSpec`."""

    name: str
    summary: str
    load: Callable[[], CostModel]
    requires: tuple[str, ...] = ()
    cite: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSpec:
    """One frontend that a plugin offers; fields as in :class:`SolverSpec`."""

    name: str
    summary: str
    load: Callable[[], Frontend]
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    """One executor that a plugin offers; fields as in :class:`SolverSpec`."""

    name: str
    summary: str
    load: Callable[[], Executor]
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSpec:
    """One exporter that a plugin offers; fields as in :class:`SolverSpec`.

    Attributes:
        suffix: of the files that it writes, with its dots: ``".html"``, ``".perfetto.json"``.
    """

    name: str
    summary: str
    suffix: str
    load: Callable[[], Exporter]
    requires: tuple[str, ...] = ()

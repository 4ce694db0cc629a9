"""What a plugin registers: light, frozen descriptions; nothing heavy is imported until ``load`` is called."""

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
    """Answers problems. A solver is a value: its fields are its settings, and it keeps no state."""

    def solve(self, problem: Problem) -> Solution:
        """Find a schedule; return ``Solution.found``, ``.infeasible`` (proved) or ``.unknown``."""
        ...


@runtime_checkable
class MinimumBudgetSolver(Solver, Protocol):
    """A solver that can also look for the least peak; of others, bisection finds it."""

    def minimum_budget(self, problem: Problem) -> Solution:
        """Find a schedule with as low a peak as possible; the budget is known to be enough."""
        ...


class CostModel(Protocol):
    """Gives every op of a graph a cost, and the graph its cost unit."""

    def annotate(self, graph: DFGraph) -> DFGraph:
        """Return the graph with other costs; nothing else may change."""
        ...


class Traced(Protocol):
    """A traced program: its graph, and whatever the matching executor needs beside it."""

    @property
    def graph(self) -> DFGraph:
        """The training step."""
        ...


class Frontend(Protocol):
    """Traces a program of one framework into a graph.

    ``checkmate trace --NAME MODULE:FACTORY`` calls it with what that names, with ``cost_model=`` if the user
    asks for one, and with ``on_progress=`` if ``trace`` takes that.
    """

    def trace(self, program: Any, /, *args: Any, **kwargs: Any) -> Traced:
        """Trace ``program``; the other arguments are the frontend's own."""
        ...


class Executor(Protocol):
    """Makes a schedule really happen."""

    def bind(self, traced: Any, schedule: Schedule) -> Callable[..., Any]:
        """A callable that runs the traced program as the schedule says."""
        ...


class Exporter(Protocol):
    """Writes a judged schedule in some format."""

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        """Write ``timeline`` to ``file``.

        Args:
            timeline: what the judge saw.
            file: to write. On the command line it lies in an empty folder, which is the current one
                meanwhile; once ``write`` returns, that one file replaces what the user named.
            budget: bytes to draw or name beside the peak, where the format has a place for it; may be
                smaller than the peak.
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

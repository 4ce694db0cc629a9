"""The specs that plugins register: light, frozen; nothing heavy is imported until ``load`` is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from checkmate.model.graph import DFGraph
    from checkmate.model.schedule import Schedule
    from checkmate.problem.problem import Problem
    from checkmate.problem.solution import Solution
    from checkmate.simulate import Timeline

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
    "Observed",
    "ProgramExecutor",
    "RunnableProgram",
    "Solver",
    "SolverSpec",
    "StepReport",
    "Traced",
    "Trial",
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
        """A callable that runs the traced program in the order of the schedule, with its frees.

        Raises:
            InvalidScheduleError: if the simulator rejects the schedule.
            UnsupportedScheduleError: if the schedule is valid, but changes the order of ops that must keep
                it, or recomputes an op in vain where that would do harm.
        """
        ...


@runtime_checkable
class ProgramExecutor(Executor, Protocol):
    """An executor that can also run the programs that its frontend traces: for ``checkmate run``."""

    def prepare(self, program: Any, /, **options: Any) -> RunnableProgram:
        """Trace a program so that it can be run: with real parameters and inputs.

        Args:
            program: as the frontend of the same name takes it.
            options: keyword arguments of the frontend's ``trace``.
        """
        ...


class RunnableProgram(Protocol):
    """A traced program with real parameters and inputs."""

    @property
    def traced(self) -> Traced:
        """The program as :meth:`Executor.bind` takes it."""
        ...

    def step(self, bound: Callable[..., Any]) -> StepReport:
        """Run one training step of the bound program, and measure it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One training step as it was measured.

    Attributes:
        loss: the loss before the update; None if the program has none.
        peak: the most bytes held during the step, parameters and inputs included; None if not measured.
        seconds: the time of the step.
        over: bytes by which ``peak`` may be above the simulator's count: tensors that the graph omits.
    """

    loss: float | None
    peak: int | None
    seconds: float
    over: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One call of a bound program, as the allocator of the framework saw it.

    All bytes are counted beyond those that were allocated right before the call.

    Attributes:
        results: the results of the call, as :meth:`Trial.run` returns them.
        ops: the ops that ran, in order.
        peaks: the most bytes held while each of ``ops`` ran, its workspace included.
        held: bytes held after each of ``ops``, once the tensors are freed that the schedule frees before the
            next op.
        left: bytes still held when the call is over and its results are dropped.
        under: bytes by which ``held`` may be below the simulator's count: tensors that the graph charges
            for longer than they are held.
        over: bytes by which ``held`` and ``peaks`` may be above the simulator's count: tensors that the graph
            omits.
    """

    results: Sequence[Any]
    ops: Sequence[int]
    peaks: Sequence[int]
    held: Sequence[int]
    left: int
    under: int = 0
    over: int = 0


class Trial(Protocol):
    """A small program on which the conformance kit tests an executor; each call starts from the same state.

    Results are all values that must be the same, as arrays or numbers: loss, gradients, new statistics.
    """

    @property
    def name(self) -> str:
        """The program's name, for reports."""
        ...

    def traced(self) -> Traced:
        """The program, traced; the same graph at each call."""
        ...

    def plain(self) -> Sequence[Any]:
        """The results of the program as the framework alone runs it."""
        ...

    def run(self, bound: Callable[..., Any]) -> Sequence[Any]:
        """Call what the executor's ``bind`` returned, once; return the results."""
        ...

    def observe(self, executor: Any, traced: Any, schedule: Schedule) -> Observed | None:
        """Bind, call, and record the allocator; None if it can't be observed on this machine."""
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
    """One executor that a plugin offers; fields as in :class:`SolverSpec`.

    Attributes:
        name: the name of the frontend whose programs it runs.
        features: ``"reorders"``: it runs schedules in which the first runs of the ops are not in base order,
            as far as the program allows.
        trials: makes the programs on which the conformance kit tests it.
    """

    name: str
    summary: str
    load: Callable[[], Executor]
    features: frozenset[str] = frozenset()
    requires: tuple[str, ...] = ()
    trials: Callable[[], Sequence[Trial]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSpec:
    """One exporter that a plugin offers; fields as in :class:`SolverSpec`.

    Attributes:
        suffix: suffix of the files that it writes, with its dots: ``".html"``, ``".perfetto.json"``.
    """

    name: str
    summary: str
    suffix: str
    load: Callable[[], Exporter]
    requires: tuple[str, ...] = ()

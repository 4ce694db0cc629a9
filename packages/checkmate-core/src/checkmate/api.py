"""The front door: a graph and a budget in, a judged schedule out.

    c* = min cost(σ)  over schedules σ with  peak(σ) ≤ budget

A solver's answer is only a claim: whatever comes back is replayed by the judge on the graph that was asked
about, so that no schedule reaches a user unjudged.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np

from checkmate.analysis import floor
from checkmate.errors import InfeasibleBudgetError, InvalidScheduleError, SolverError
from checkmate.graph import DFGraph
from checkmate.heuristics.first_fit import FirstFit
from checkmate.plugins import (
    Solver,
    ambiguous_solvers,
    installed_plugins,
    load_solver,
    solver_spec,
    solver_specs,
)
from checkmate.plugins.loader import one_line
from checkmate.problem import Problem, Progress, keep_all_peak
from checkmate.schedule import Schedule
from checkmate.solution import Solution, Status
from checkmate.units import Budget, parse_budget

__all__ = ["infeasible_error", "minimum_budget", "solve"]

_AUTO = "auto"
_FALLBACK = "heuristics"
_QUICK = FirstFit()
_MINIMUM_TIME_S = 5.0
_log = logging.getLogger(__name__)


def solve(
    graph: DFGraph,
    budget: Budget,
    *,
    solver: str | Solver = _AUTO,
    time_limit: float = 10.0,
    fixed_order: bool = False,
    threads: int = 1,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
    throw: bool = True,
) -> Solution:
    """Find the cheapest schedule of ``graph`` whose peak is within ``budget``.

    Args:
        graph: the training step.
        budget: bytes (``8 * 2**30``), a size (``"8GiB"``), or a share (``"60%"``, ``0.6``) of the
            keep-everything peak; counts everything resident, graph inputs and ``fixed_size`` included.
        solver: name of an installed solver (``checkmate plugins`` lists them), or a solver itself.
            ``"auto"`` comes with ``checkmate-solvers``; without it, the best built-in heuristic answers.
        time_limit: seconds of wall time that the solver may use.
        fixed_order: True = the first runs of the ops keep the base order.
        threads: how many threads or processes the solver may use.
        seed: for every random choice.
        on_progress: called with each :class:`Progress`; an exception that it raises ends the solve.
        throw: False = without a schedule return a solution with the status ``INFEASIBLE`` (proved) or
            ``UNKNOWN`` (none found) instead of raising.

    Raises:
        BudgetError: if the budget can't be read or is not positive.
        InfeasibleBudgetError: if no schedule was found; says what budget would do.
        PluginError: if there is no such solver, or it failed to load.
        SolverError: if the solver fails, or its answer does not pass the judge.
        ValueError: if ``time_limit`` or ``threads`` makes no sense.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 2], deps=[[], [0], [1]])
    >>> solve(graph, "100%", solver="keep-all").status
    <Status.OPTIMAL: 'optimal'>
    """
    problem = Problem(
        graph=graph,
        budget=parse_budget(budget, keep_all_peak(graph)),
        time_limit=time_limit,
        fixed_order=fixed_order,
        seed=seed,
        threads=threads,
        on_progress=on_progress,
    )
    name, engine = _engine(solver)
    solution = _ask(engine, name, problem)
    if throw and solution.timeline is None:
        raise infeasible_error(solution)
    return solution


def minimum_budget(
    graph: DFGraph,
    *,
    solver: str | Solver = _QUICK,
    time_limit: float = _MINIMUM_TIME_S,
    fixed_order: bool = False,
    tolerance: float = 1e-3,
) -> Solution:
    """The least budget for which ``solver`` finds a schedule, and that schedule.

    Bisects between the proved floor of the graph and the keep-everything peak. The true minimum may be
    lower unless ``peak`` equals :func:`checkmate.floor`: finding it is as hard as solving.

    Args:
        graph: the training step.
        solver: as in :func:`solve`; the default is quick.
        time_limit: seconds; when they are up, the least so far is returned.
        fixed_order: as in :func:`solve`.
        tolerance: stop when the interval is this fraction of its upper end.

    Returns:
        a solution whose ``peak`` and ``problem.budget`` are that budget.

    Raises:
        PluginError, SolverError: as :func:`solve`.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 2], deps=[[], [0], [1]])
    >>> minimum_budget(graph).peak
    8
    """
    deadline = time.monotonic() + time_limit
    name, engine = _engine(solver)
    everything = Schedule.from_sequence(graph, range(graph.n_ops))
    high = keep_all_peak(graph)
    best = Solution.found(Problem(graph=graph, budget=max(high, 1)), everything, solver="keep-all")
    low = floor(graph).size - 1  # proved too little
    budget = low + 1  # often enough
    while high - low > max(1, tolerance * high) and (left := deadline - time.monotonic()) > 0:
        problem = Problem(graph=graph, budget=max(budget, 1), time_limit=left, fixed_order=fixed_order)
        answer = _ask(engine, name, problem)
        if answer.timeline is None:
            low = budget
        else:
            best, high = answer, answer.timeline.peak
        budget = (low + high) // 2
    return dataclasses.replace(best, problem=dataclasses.replace(best.problem, budget=max(high, 1)))


def infeasible_error(solution: Solution) -> InfeasibleBudgetError:
    """The error that says what would do instead, for a solution without a schedule.

    Looks for the least budget known to work with quick heuristics: a few seconds at most.
    """
    graph = solution.problem.graph
    size, op = floor(graph)
    return InfeasibleBudgetError(
        budget=solution.problem.budget,
        minimum=minimum_budget(graph, fixed_order=solution.problem.fixed_order).peak,
        floor=size,
        bottleneck=graph.ops[op].name if op is not None else "(the graph outputs)",
        proved=solution.status is Status.INFEASIBLE,
    )


def _engine(solver: str | Solver) -> tuple[str, Solver]:
    """The solver and its name; ``auto`` falls back to the built-in heuristics, with a warning."""
    if not isinstance(solver, str):
        return type(solver).__name__, solver
    if solver == _AUTO and _AUTO not in {*ambiguous_solvers(), *(spec.name for spec in solver_specs())}:
        broken = [f"{p.owner}: {p.error}" for p in installed_plugins() if p.error is not None]
        _log.warning(
            "no solver 'auto' is loaded: using %r; for better schedules: pip install checkmate-solvers%s",
            _FALLBACK,
            f" (failed to load: {'; '.join(broken)})" if broken else "",
        )
        solver = _FALLBACK
    return solver_spec(solver).name, load_solver(solver)


def _ask(engine: Solver, name: str, problem: Problem) -> Solution:
    """Run the solver and judge its answer. Below the proved floor there is nothing to ask."""
    if problem.budget < floor(problem.graph).size:
        return Solution.infeasible(problem, solver=name)
    listener = _Listener(problem.on_progress) if problem.on_progress else None
    started = time.monotonic()
    try:
        claim = engine.solve(dataclasses.replace(problem, on_progress=listener))
    except Exception as error:
        if listener and error is listener.raised:
            raise
        raise SolverError(f"solver {name!r} failed: {one_line(error)}") from error
    seconds = time.monotonic() - started
    return dataclasses.replace(_judged(claim, name, problem), solver=name, seconds=seconds)


@dataclass(slots=True)
class _Listener:
    """Passes reports on, and remembers what the user's code raised: that is not the solver's failure."""

    tell: Callable[[Progress], None]
    raised: Exception | None = None

    def __call__(self, report: Progress) -> None:
        try:
            self.tell(report)
        except Exception as error:
            self.raised = error
            raise


def _judged(claim: object, name: str, problem: Problem) -> Solution:
    """What remains of a solver's claim after the judge has replayed it on the graph we asked about."""
    if not isinstance(claim, Solution):
        raise SolverError(f"solver {name!r} returned a {type(claim).__name__}, not a Solution")
    _check_same_graph(claim, name, problem.graph)
    bound: object = claim.bound
    if not isinstance(bound, Real) or math.isnan(bound):
        raise SolverError(f"solver {name!r} claims a lower bound that is not a number: {bound!r}")
    if claim.timeline is None:
        return _judged_without_schedule(claim, name, problem)
    schedule = claim.timeline.schedule
    if claim.status == Status.INFEASIBLE:
        raise SolverError(f"solver {name!r} claims that the problem is infeasible, but gave a schedule")
    if problem.fixed_order and not _keeps_base_order(schedule):
        raise SolverError(f"solver {name!r} was asked to keep the base order of first runs, but did not")
    try:
        solution = Solution.found(problem, schedule, bound=claim.bound, solver=name, origin=claim.origin)
    except InvalidScheduleError as error:
        raise SolverError(f"solver {name!r} gave an invalid schedule: {error}") from error
    if claim.status == Status.OPTIMAL and solution.status is not Status.OPTIMAL:
        raise SolverError(
            f"solver {name!r} claims an optimum, but its schedule costs {solution.cost} "
            f"and its lower bound is {solution.bound}"
        )
    return solution


def _judged_without_schedule(claim: Solution, name: str, problem: Problem) -> Solution:
    if claim.status not in (Status.INFEASIBLE, Status.UNKNOWN):
        raise SolverError(f"solver {name!r} claims to be {claim.status}, but gave no schedule")
    if claim.status == Status.UNKNOWN:
        return Solution.unknown(problem, bound=claim.bound)
    quick = FirstFit().solve(problem)
    if quick.timeline is not None:
        raise SolverError(
            f"solver {name!r} claims that a budget of {problem.budget} bytes is infeasible, but the "
            f"built-in heuristics found a schedule with a peak of {quick.timeline.peak} bytes"
        )
    return Solution.infeasible(problem)


def _check_same_graph(claim: Solution, name: str, graph: DFGraph) -> None:
    seen = [claim.problem.graph] + ([claim.timeline.graph] if claim.timeline else [])
    if any(other is not graph and other.digest != graph.digest for other in seen):
        raise SolverError(f"solver {name!r} answered about another graph than {graph!r}")


def _keeps_base_order(schedule: Schedule) -> bool:
    _, first = np.unique(schedule.sequence, return_index=True)
    return bool(np.all(np.diff(first) > 0))

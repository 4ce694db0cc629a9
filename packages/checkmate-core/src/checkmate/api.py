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
from functools import cache

from checkmate.analysis import floor
from checkmate.cache import Identity, ScheduleCache, identity_of
from checkmate.claim import Claim
from checkmate.deadline import Deadline
from checkmate.errors import (
    InfeasibleBudgetError,
    InvalidScheduleError,
    PluginError,
    SolverError,
    install_hint,
)
from checkmate.graph import DFGraph
from checkmate.heuristics.first_fit import FirstFit
from checkmate.lowest import lowest_known, remember_lowest
from checkmate.plugins import SOLVERS, MinimumBudgetSolver, Solver, installed_plugins
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.problem import OnProgress, Problem, Progress, keep_all_peak
from checkmate.schedule import Schedule
from checkmate.simulate import simulate
from checkmate.solution import Solution, Status
from checkmate.units import Budget, parse_budget

__all__ = ["Engine", "engine_of", "infeasible_error", "judged", "minimum_budget", "solve"]

_AUTO = "auto"
_FALLBACK = "heuristics"
_QUICK = FirstFit()
_MINIMUM_TIME_S = 5.0
_ADVICE_SHARE = 0.3
"""Of the time limit: what an error may use to name the least budget. Solvers have more for that budget."""
_LEAST_ADVICE_SHARE = 0.05
_LITTLE = 0.01
"""Of the time limit: what is little."""
_KNOWN = "known before"
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
    on_progress: OnProgress | None = None,
    cache: bool | ScheduleCache | None = None,
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
        cache: look here first, and keep what is found; True = the cache of this user, None = none. What
            is read from it is judged again; ``origin["cache"]`` then names the file.
        throw: False = without a schedule return a solution with the status ``INFEASIBLE`` (proved) or
            ``UNKNOWN`` (none found) instead of raising.

    Raises:
        BudgetError: if the budget can't be read or is not positive.
        InfeasibleBudgetError: if no schedule was found; says what budget would do.
        PluginError: if there is no such solver, or it failed to load.
        SolverError: if the solver fails, or its answer does not pass the judge.
        TypeError, ValueError: if another argument makes no sense.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 2], deps=[[], [0], [1]])
    >>> solve(graph, "100%", solver="keep-all").status
    <Status.OPTIMAL: 'optimal'>
    """
    started = time.thread_time()
    problem = Problem(
        graph=graph,
        budget=parse_budget(budget, keep_all_peak(graph)),
        time_limit=time_limit,
        fixed_order=fixed_order,
        seed=seed,
        threads=threads,
        on_progress=on_progress,
        start=lowest_known(graph, fixed_order=fixed_order),
    )
    floor(graph)
    spent_s = time.thread_time() - started
    engine = engine_of(solver)
    kept = ScheduleCache() if cache is True else cache or None
    if not isinstance(kept, ScheduleCache | None):
        raise TypeError(f"cache is {cache!r}, must be True, None or a ScheduleCache(directory)")
    if kept is None:
        solution = _ask(engine, problem, spent_s=spent_s)
    else:
        solution = _remembered(engine, problem, kept, spent_s)
    if solution.timeline is None and solver == _AUTO:
        solution = _or_known(solution)
    if throw and solution.timeline is None:
        raise infeasible_error(solution)
    return solution


def _or_known(solution: Solution) -> Solution:
    """The schedule of least peak that is known, if it is within the budget that was not met."""
    problem = solution.problem
    known = simulate(problem.graph, problem.start) if problem.start is not None else None
    if known is None or known.peak > problem.budget:
        return solution
    origin = {"schedule": _KNOWN}
    return Solution.found(problem, known, bound=solution.bound, solver=solution.solver, origin=origin)


def minimum_budget(
    graph: DFGraph,
    *,
    solver: str | Solver | None = None,
    time_limit: float = _MINIMUM_TIME_S,
    fixed_order: bool = False,
    seed: int = 0,
    tolerance: float = 1e-3,
) -> Solution:
    """The least budget for which a schedule is found, and that schedule.

    Proved is :func:`checkmate.floor`: no schedule needs less. The true minimum lies between the two, and to
    find it is as hard as solving.

    Args:
        graph: the training step.
        solver: as in :func:`solve`. One that looks for the least peak itself
            (:class:`~checkmate.plugins.MinimumBudgetSolver`) is asked once, any other in a bisection between
            the floor and the keep-everything peak. None = ``"auto"`` if it is one of the former, else
            quick rules.
        time_limit: seconds; when they are up, the least so far is returned.
        fixed_order: as in :func:`solve`.
        seed: as in :func:`solve`.
        tolerance: a bisection stops when the interval is this fraction of its upper end.

    Returns:
        a solution whose ``peak`` and ``problem.budget`` are that budget.

    Raises:
        PluginError, SolverError: as :func:`solve`.

    >>> graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 2], deps=[[], [0], [1]])
    >>> minimum_budget(graph).peak
    8
    """
    problem = Problem(
        graph=graph,
        budget=max(keep_all_peak(graph), 1),
        time_limit=time_limit,
        fixed_order=fixed_order,
        seed=seed,
    )
    everything = Schedule.from_sequence(graph, range(graph.n_ops))
    best = Solution.found(problem, everything, solver="keep-all")
    known = lowest_known(graph, fixed_order=fixed_order) if solver is None else None
    problem = dataclasses.replace(problem, start=known)
    if known is not None:
        best = min(best, Solution.found(problem, known, solver=_KNOWN), key=_peak)
    if floor(graph).size < keep_all_peak(graph):
        engine = engine_of(_QUICK if solver is None else solver)
        if solver is None and any(spec.name == _AUTO for spec in SOLVERS.specs()):
            auto = engine_of(_AUTO)
            engine = auto if isinstance(auto.load(), MinimumBudgetSolver) else engine
        able = engine.load()
        if isinstance(able, MinimumBudgetSolver):
            found = _ask(engine, problem, able.minimum_budget)
            best = min((best, found) if found.timeline is not None else (best,), key=_peak)
        else:
            best = _bisected(engine, best, tolerance)
    remember_lowest(graph, best.schedule, fixed_order=fixed_order)
    return dataclasses.replace(best, problem=dataclasses.replace(problem, budget=max(best.peak or 0, 1)))


def _peak(solution: Solution) -> int:
    return solution.peak or 0


def _bisected(engine: Engine, best: Solution, tolerance: float) -> Solution:
    """The schedule with the least peak that a solver gives, asked about one budget after the other."""
    problem, high = best.problem, _peak(best)
    deadline = Deadline(problem.time_limit, patient=True)
    low = floor(problem.graph).size - 1  # proved too little
    budget = low + 1  # often enough
    while high - low > max(1, tolerance * high) and (left := deadline.left_s) > 0:
        answer = _ask(engine, dataclasses.replace(problem, budget=max(budget, 1), time_limit=left))
        if answer.timeline is None:
            low = budget
        else:
            best, high = answer, answer.timeline.peak
        budget = (low + high) // 2
    return best


def infeasible_error(solution: Solution) -> InfeasibleBudgetError:
    """The error that says what would do instead, for a solution without a schedule.

    It names the least budget known to work. Looking for that takes a few seconds at most, a part of the time
    limit, and almost nothing where the solver has used up the limit.
    """
    problem, graph = solution.problem, solution.problem.graph
    size, op = floor(graph)
    limit = problem.time_limit
    left = max(limit - solution.seconds, _LEAST_ADVICE_SHARE * limit)
    seconds = min(_MINIMUM_TIME_S, _ADVICE_SHARE * limit, left)
    least = minimum_budget(graph, time_limit=seconds, fixed_order=problem.fixed_order, seed=problem.seed)
    return InfeasibleBudgetError(
        budget=problem.budget,
        minimum=least.peak,
        floor=size,
        bottleneck=graph.ops[op].name if op is not None else None,
        proved=solution.status is Status.INFEASIBLE,
        reason=solution.origin.get("reason", ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A solver that can be asked: its name for messages, its identity for caches (None = has none)."""

    name: str
    identity: Identity | None
    load: Callable[[], Solver]


def engine_of(solver: str | Solver) -> Engine:
    """Look a solver up; ``auto`` falls back to the built-in heuristics, with a warning.

    Raises:
        PluginError: if there is no solver of this name, or several.
        TypeError: if it is neither a name nor a solver.
    """
    if not isinstance(solver, str):
        value = solver
        if isinstance(value, type) or not callable(getattr(value, "solve", None)):
            raise TypeError(f"solver is {value!r}, must be a name or an object with a method solve(problem)")
        return Engine(name=type(value).__name__, identity=identity_of(value), load=lambda: value)
    if solver == _AUTO and not _has_auto():
        solver = _FALLBACK
    name = SOLVERS.spec(solver).name
    identity = {"name": name, "plugin": SOLVERS.owner(name).owner}
    return Engine(name=name, identity=identity, load=lambda: SOLVERS.load(name))


def _has_auto() -> bool:
    """Whether 'auto' can be asked for, or is ambiguous, which is an error; if not, a warning says why."""
    if _AUTO in SOLVERS.ambiguous():
        return True
    if _AUTO in (spec.name for spec in SOLVERS.specs()):
        try:
            SOLVERS.load(_AUTO)
        except PluginError as error:
            _warn_once(f"{error}; using {_FALLBACK!r} ('checkmate doctor' looks into it)")
            return False
        return True
    broken = "; ".join(f"{p.owner}: {p.error}" for p in installed_plugins() if p.error is not None)
    _log.warning(
        "no solver %r is loaded: using %r; for better schedules: %s%s",
        _AUTO,
        _FALLBACK,
        install_hint("checkmate-solvers"),
        f" (failed to load: {broken})" if broken else "",
    )
    return False


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def _remembered(engine: Engine, problem: Problem, cache: ScheduleCache, spent_s: float) -> Solution:
    """Ask the cache, then the solver; what the cache says is a claim of that solver like any other."""
    if engine.identity is None:
        return _ask(engine, problem, spent_s=spent_s)
    known = cache.find(problem, engine.identity, lambda claim: judged(claim, engine.name, problem))
    if known is not None:
        return known
    solution = _ask(engine, problem, spent_s=spent_s)
    if not solution.provisional:
        cache.store(solution, engine.identity)
    return solution


def _ask(
    engine: Engine,
    problem: Problem,
    method: Callable[[Problem], object] | None = None,
    *,
    spent_s: float = 0.0,
) -> Solution:
    """Run the solver, or a method of it, and judge its answer; not below the proved floor.

    What has been spent on the graph before is taken off the time limit, where it is more than a hundredth.
    """
    name = engine.name
    if problem.budget < floor(problem.graph).size:
        return Solution.infeasible(problem, solver=name)
    method = method or engine.load().solve
    limit = problem.time_limit
    if spent_s > _LITTLE * limit:
        limit = max(limit - spent_s, _LITTLE * limit)
    listener = _Listener(problem.on_progress) if problem.on_progress else None
    fields = [field.name for field in dataclasses.fields(problem.graph)]
    before = [getattr(problem.graph, name) for name in fields]
    started = time.monotonic()
    try:
        answer = method(dataclasses.replace(problem, on_progress=listener, time_limit=limit))
    except ANYTHING as error:
        if listener and error is listener.raised:
            raise
        raise SolverError(f"solver {name!r} failed: {one_line(error)}") from error
    seconds = time.monotonic() - started
    if any(getattr(problem.graph, f) is not was for f, was in zip(fields, before, strict=True)):
        raise SolverError(
            f"solver {name!r} changed the graph that it was given: graphs are shared, and frozen"
        )
    if isinstance(answer, Solution):
        remember_lowest(problem.graph, answer.lowest, fixed_order=problem.fixed_order)
    return dataclasses.replace(judged(_claimed(answer, name, problem), name, problem), seconds=seconds)


def _claimed(answer: object, name: str, problem: Problem) -> Claim:
    """What the solver says, once it is known to say something about this problem."""
    if not isinstance(answer, Solution):
        raise SolverError(f"solver {name!r} returned a {type(answer).__name__}, not a Solution")
    try:
        asked, about = problem.graph, answer.problem
        seen = [about.graph] + ([answer.timeline.graph] if answer.timeline else [])
        same = all(graph is asked or graph.digest == asked.digest for graph in seen)
        narrower = about.budget < problem.budget or about.fixed_order > problem.fixed_order
        claim = Claim.of(answer)
    except Exception as error:
        raise SolverError(f"solver {name!r} returned no sound Solution: {one_line(error)}") from error
    if not same:
        raise SolverError(f"solver {name!r} answered about another graph than {asked!r}")
    if narrower:  # what is proved for less freedom need not hold for more
        raise SolverError(
            f"solver {name!r} answered about a budget of {about.budget} bytes with fixed_order="
            f"{about.fixed_order}, not {problem.budget} with {problem.fixed_order}: "
            "make the Solution with the problem that was asked"
        )
    return claim


@dataclass(slots=True)
class _Listener:
    """Passes reports on, and remembers what the user's code raised: that is not the solver's failure."""

    tell: Callable[[Progress], None]
    raised: BaseException | None = None

    def __call__(self, report: Progress) -> None:
        try:
            self.tell(report)
        except ANYTHING as error:
            self.raised = error
            raise


def judged(claim: Claim, name: str, problem: Problem) -> Solution:
    """What remains of a claim after the judge has replayed it on the graph that we asked about.

    Args:
        claim: what was said.
        name: of the solver that said it.
        problem: what it was asked.

    Raises:
        SolverError: names the solver and says what is wrong.
    """
    if math.isnan(claim.bound):
        raise SolverError(f"solver {name!r} claims a lower bound that is not a number: {claim.bound!r}")
    if claim.schedule is None:
        return _judged_without_schedule(claim, name, problem)
    if claim.status == Status.INFEASIBLE:
        raise SolverError(f"solver {name!r} claims that the problem is infeasible, but gave a schedule")
    if problem.fixed_order and not claim.schedule.keeps_base_order:
        raise SolverError(f"solver {name!r} was asked to keep the base order of first runs, but did not")
    try:
        solution = Solution.found(
            problem, claim.schedule, bound=claim.bound, solver=name, origin=claim.origin
        )
    except InvalidScheduleError as error:
        raise SolverError(f"solver {name!r} gave an invalid schedule: {error}") from error
    if claim.status == Status.OPTIMAL and solution.status is not Status.OPTIMAL:
        raise SolverError(
            f"solver {name!r} claims an optimum, but its schedule costs {solution.cost} "
            f"and its lower bound is {solution.bound}"
        )
    return solution


def _judged_without_schedule(claim: Claim, name: str, problem: Problem) -> Solution:
    if claim.status not in (Status.INFEASIBLE, Status.UNKNOWN):
        raise SolverError(f"solver {name!r} claims to be {claim.status}, but gave no schedule")
    if claim.status == Status.UNKNOWN and claim.bound < math.inf:
        reason = claim.origin.get("reason", "")
        return Solution.unknown(problem, bound=max(claim.bound, 0.0), solver=name, reason=reason)
    quick = FirstFit().solve(problem) if problem.budget >= floor(problem.graph).size else None
    if quick is not None and quick.timeline is not None:
        raise SolverError(
            f"solver {name!r} claims that a budget of {problem.budget} bytes is infeasible, but the "
            f"built-in heuristics found a schedule with a peak of {quick.timeline.peak} bytes"
        )
    return Solution.infeasible(problem, solver=name)

"""The front door: a graph and a budget in, a judged schedule out.

    c* = min cost(σ)  over schedules σ with  peak(σ) ≤ budget

A solver's answer is only a claim: the judge replays its schedule on the graph of the question
(:mod:`checkmate.solving.judging`), so that no schedule reaches a user unchecked.
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
from checkmate.errors import InfeasibleBudgetError, PluginError, SolverError, install_hint
from checkmate.files.cache import Identity, ScheduleCache, identity_of
from checkmate.heuristics.best import FirstFit
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.plugins import SOLVERS, MinimumBudgetSolver, Solver, installed_plugins
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import OnProgress, Problem, Progress, keep_all_peak
from checkmate.problem.solution import Solution, Status
from checkmate.simulate import Timeline, simulate
from checkmate.solving.judging import claimed, judged
from checkmate.solving.lowest import lowest_known, remember_lowest
from checkmate.units import Budget, parse_budget

__all__ = ["Engine", "engine_of", "infeasible_error", "minimum_budget", "solve"]

_AUTO = "auto"
_FALLBACK = "heuristics"
_QUICK = FirstFit()
_MINIMUM_TIME_S = 5.0
_ADVICE_SHARE = 0.3
"""Share of the time limit that an error may spend on naming the least budget."""
_LEAST_ADVICE_SHARE = 0.05
"""The same share if the solver has used up its time limit."""
_BUDGET_SHARE = 0.2
"""Share of the remaining time that a bisection may spend on one budget: at a budget that is too small, a
solver often takes 100 times as long as at one that it meets."""
_SURE_BUDGETS, _SURE_SHARE = 8, 0.02
"""Each of the first ``_SURE_BUDGETS`` budgets of a bisection gets ``_SURE_SHARE`` of the time limit even if
no time is left: a garbage collection of a large process may take more than the whole limit."""
_LITTLE = 0.01
"""Share of the time limit below which time already spent is ignored."""
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
    start: Schedule | None = None,
    throw: bool = True,
) -> Solution:
    """Find the cheapest schedule of ``graph`` whose peak is within ``budget``.

    Args:
        graph: the training step.
        budget: bytes (``8 * 2**30``), a size (``"8GiB"``), or a share (``"60%"``, ``0.6``) of the
            peak without recomputation; it limits everything resident, graph inputs and ``fixed_size``
            included.
        solver: name of an installed solver (``checkmate plugins`` lists them), or a solver itself.
            ``"auto"`` comes with ``checkmate-solvers``; without it, the best built-in heuristic answers.
        time_limit: seconds of wall time that the solver may use.
        fixed_order: True = the first runs of the ops keep the base order.
        threads: how many threads or processes the solver may use.
        seed: for every random choice.
        on_progress: called with each :class:`Progress`; an exception that it raises ends the solve.
        cache: where solutions are looked up first, and kept; True = the cache of this user, None = none. A
            schedule from the cache is judged again, and ``origin["cache"]`` names its file.
        start: a valid schedule of the graph, with any peak, that the solver may improve on. If it is within
            the budget, the answer costs no more.
        throw: False = without a schedule return a solution with the status ``INFEASIBLE`` (proved) or
            ``UNKNOWN`` (none found) instead of raising.

    Raises:
        BudgetError: if the budget can't be read or is not positive.
        InfeasibleBudgetError: if no schedule was found; names a budget that is enough, if one is known.
        PluginError: if there is no such solver, or it failed to load.
        SolverError: if the solver fails, or its answer does not pass the judge.
        InvalidScheduleError: if ``start`` is no valid schedule of the graph.
        TypeError, ValueError: if another argument is out of its range or of the wrong type.

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
        start=lowest_known(graph, fixed_order=fixed_order) if start is None else start,
    )
    floor(graph)
    known = None if start is None else _start_within(problem)
    spent_s = time.thread_time() - started
    engine = engine_of(solver)
    kept = ScheduleCache() if cache is True else cache or None
    if not isinstance(kept, ScheduleCache | None):
        raise TypeError(f"cache is {cache!r}, must be True, None or a ScheduleCache(directory)")
    if kept is None:
        solution = _ask(engine, problem, spent_s=spent_s)
    else:
        solution = _remembered(engine, problem, kept, spent_s, math.inf if known is None else known.cost)
    if start is None and solution.timeline is None and solver == _AUTO:
        known = _start_within(problem)
    if known is not None and known.cost < solution.cost:
        origin = {"schedule": _KNOWN}
        solution = Solution.found(problem, known, bound=solution.bound, solver=solution.solver, origin=origin)
    if throw and solution.timeline is None:
        raise infeasible_error(solution)
    return solution


def _start_within(problem: Problem) -> Timeline | None:
    """The timeline of ``problem.start``; None without a start, or if it does not answer the problem."""
    if problem.start is None:
        return None
    known = simulate(problem.graph, problem.start)
    in_order = known.schedule.keeps_base_order or not problem.fixed_order
    return known if in_order and known.peak <= problem.budget else None


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

    :func:`checkmate.floor` is a proved lower limit: no schedule needs less. The true minimum lies between the
    two; finding it is as hard as solving.

    Args:
        graph: the training step.
        solver: as in :func:`solve`. A solver that searches for the least peak itself
            (:class:`~checkmate.plugins.MinimumBudgetSolver`) runs once; any other runs at the budgets of a
            bisection between the floor and the peak without recomputation. None = ``"auto"`` if it searches
            for the least peak itself, else quick rules.
        time_limit: seconds; afterwards the least budget so far is returned.
        fixed_order: as in :func:`solve`.
        seed: as in :func:`solve`.
        tolerance: a bisection stops when the interval is this fraction of its upper end.

    Returns:
        a solution whose ``peak`` and ``problem.budget`` both are the least budget.

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
    """The schedule of least peak that a solver finds in a bisection of the budget."""
    problem, high = best.problem, _peak(best)
    deadline = Deadline(problem.time_limit, patient=True)
    low = floor(problem.graph).size - 1  # proved infeasible
    budget = low + 1  # the floor is often enough
    tried = 0
    while high - low > max(1, tolerance * high):
        sure_s = _SURE_SHARE * problem.time_limit if tried < _SURE_BUDGETS else 0.0
        if (limit := max(deadline.part(_BUDGET_SHARE).left_s, sure_s)) <= 0:
            break
        tried += 1
        answer = _ask(engine, dataclasses.replace(problem, budget=max(budget, 1), time_limit=limit))
        if answer.timeline is None:
            low = budget
        else:
            best, high = answer, answer.timeline.peak
        budget = (low + high) // 2
    return best


def infeasible_error(solution: Solution) -> InfeasibleBudgetError:
    """The error for a solution without a schedule; it names the least budget known to work.

    The search for that budget takes at most ``_MINIMUM_TIME_S``, and at most a share of the time limit.
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
        whole=keep_all_peak(graph),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A solver that is ready to run: its name for messages, its identity for caches (None = not cached)."""

    name: str
    identity: Identity | None
    load: Callable[[], Solver]


def engine_of(solver: str | Solver) -> Engine:
    """Look a solver up; ``auto`` falls back to the built-in heuristics, with a warning.

    Raises:
        PluginError: if there is no solver of this name, or several.
        TypeError: if ``solver`` is neither a name nor has a method ``solve``.
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
    """Whether 'auto' is offered, perhaps by several plugins; if not, one logged warning says why."""
    if _AUTO in SOLVERS.ambiguous():
        return True
    if _AUTO in (spec.name for spec in SOLVERS.specs()):
        try:
            SOLVERS.load(_AUTO)
        except PluginError as error:
            _warn_once(f"{error}; using {_FALLBACK!r} ('checkmate doctor' says more)")
            return False
        return True
    broken = "; ".join(f"{p.owner}: {p.error}" for p in installed_plugins() if p.error is not None)
    hint = install_hint("checkmate-solvers")
    _warn_once(
        f"planning with heuristics only; checkmate-solvers usually finds cheaper plans: {hint}"
        + (f" (failed to load: {broken})" if broken else "")
    )
    return False


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def _remembered(
    engine: Engine, problem: Problem, cache: ScheduleCache, spent_s: float, most: float
) -> Solution:
    """Ask the cache, then the solver; an entry of the cache is judged like a claim of that solver.

    Entries that cost more than ``most`` are passed over.
    """
    if engine.identity is None:
        return _ask(engine, problem, spent_s=spent_s)
    known = cache.find(problem, engine.identity, lambda claim: judged(claim, engine.name, problem))
    if known is not None and known.cost <= most:
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
    """Run the solver, or one of its methods, and judge its answer; below the proved floor don't run it.

    ``spent_s``, the seconds already spent on the graph, shorten the time limit if they are more than
    ``_LITTLE``.
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
    return dataclasses.replace(judged(claimed(answer, name, problem), name, problem), seconds=seconds)


@dataclass(slots=True)
class _Listener:
    """Passes reports on, and remembers an exception of the user's code: it is not a failure of the solver."""

    listen: Callable[[Progress], None]
    raised: BaseException | None = None

    def __call__(self, report: Progress) -> None:
        try:
            self.listen(report)
        except ANYTHING as error:
            self.raised = error
            raise

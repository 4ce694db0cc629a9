"""The frontier: the least cost at each peak.

    c*(b) = min cost(σ)  over schedules σ with  peak(σ) ≤ b

never rises with b. So a schedule for a small budget also serves a larger one, and a lower bound for a large
budget also holds for a smaller one: every solve contributes to all budgets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from checkmate import errors
from checkmate.api import Engine, engine_of, solve
from checkmate.cache import ScheduleCache
from checkmate.claim import claim_bytes, read_claim
from checkmate.errors import BudgetError, CheckmateError, SolverError
from checkmate.graph import DFGraph
from checkmate.judging import judged
from checkmate.plugins import Solver
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.problem import Problem, keep_all_peak
from checkmate.serialize import graph_bytes, read_graph
from checkmate.solution import Solution
from checkmate.units import Budget, format_bytes, parse_budget

__all__ = ["Failure", "Frontier", "SweepInterrupted", "sweep"]

_TOLERANCE = 1e-9
_ROWS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A solve without a usable answer, and the reason.

    Attributes:
        budget: of the solve, in bytes.
        solver: name of the solver.
        error: the error.
    """

    budget: int
    solver: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Frontier:
    """All answers for one graph over all budgets, and the best of them.

    An answer whose lower bound is disproved by the schedule of another becomes one of the ``errors``.

    Attributes:
        graph: the graph.
        answers: every judged answer, those without a schedule included, in the order of the questions.
        errors: the failed solves.
        points: the answers that no other beats in both peak and cost, each as the answer to the least budget
            that it meets, its own peak; peaks ascend, costs strictly descend.
    """

    graph: DFGraph
    answers: tuple[Solution, ...]
    errors: tuple[Failure, ...] = ()
    points: tuple[Solution, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Move disproved answers to the errors, then drop dominated ones."""
        best = _staircase(self.answers)
        wrong = {k: fault for k, answer in enumerate(self.answers) if (fault := _disproved(answer, best))}
        sound = tuple(answer for k, answer in enumerate(self.answers) if k not in wrong)
        object.__setattr__(self, "answers", sound)
        object.__setattr__(self, "errors", (*self.errors, *wrong.values()))
        points = tuple(self._restated(answer, max(answer.peak or 0, 1)) for answer in _staircase(sound))
        object.__setattr__(self, "points", points)

    def at(self, budget: Budget) -> Solution | None:
        """The cheapest schedule known whose peak is within ``budget``, or None.

        Args:
            budget: as in :func:`checkmate.solve`.

        Returns:
            a solution for that budget, with the best bound proved for it or for a larger one.

        Raises:
            BudgetError: if the budget can't be read or is not positive.
        """
        size = parse_budget(budget, keep_all_peak(self.graph))
        fitting = [point for point in self.points if (point.peak or 0) <= size]
        return self._restated(fitting[-1], size) if fitting else None

    def _restated(self, answer: Solution, budget: int) -> Solution:
        """The schedule of ``answer`` as an answer to ``budget``, with the best bound proved for that."""
        proofs = [other for other in self.answers if other.problem.budget >= budget]
        proof = max(proofs, key=lambda other: other.bound, default=None)
        bound, origin = 0.0, answer.origin
        if proof is not None and proof.bound > 0:
            bound = min(proof.bound, answer.cost)
            origin = {**origin, "bound": proof.origin.get("bound", proof.solver)}
        assert answer.schedule is not None
        found = Solution.found(
            dataclasses.replace(answer.problem, budget=budget),
            answer.schedule,
            bound=bound,
            solver=answer.solver,
            origin=origin,
        )
        return dataclasses.replace(found, seconds=answer.seconds)

    def __repr__(self) -> str:
        """A short table: a line for each point."""
        lines = [
            f"<Frontier: {len(self.points)} points of {len(self.answers)} answers, {len(self.errors)} errors>"
        ]
        if self.points:
            lines.append(f"{'peak':>12} {'overhead':>9} {'gap':>8}  solver")
        for point in self.points[:_ROWS]:
            peak = format_bytes(point.peak or 0)
            lines.append(f"{peak:>12} {point.overhead:>9.2%} {point.gap:>8.2%}  {point.solver}")
        if len(self.points) > _ROWS:
            lines.append(f"… and {len(self.points) - _ROWS} more")
        return "\n".join(lines)


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a sweep; the answers until then are kept.

    Attributes:
        frontier: of the answers and failures until then.
        total: number of solves, finished or not.
    """

    def __init__(self, frontier: Frontier, total: int) -> None:
        """Count the answers."""
        super().__init__(f"after {len(frontier.answers) + len(frontier.errors)} of {total} answers")
        self.frontier = frontier
        self.total = total


def sweep(
    graph: DFGraph,
    budgets: Iterable[Budget],
    solvers: Iterable[str | Solver] = ("auto",),
    *,
    executor: Executor | None = None,
    time_limit: float = 10.0,
    fixed_order: bool = False,
    threads: int = 1,
    seed: int = 0,
    cache: bool | ScheduleCache | None = None,
    on_progress: Callable[[int, int, Solution | Failure], None] | None = None,
) -> Frontier:
    """Solve for every budget with every solver, perhaps in parallel; keep the best answers.

    Args:
        graph: the training step.
        budgets: each as in :func:`checkmate.solve`; duplicates are solved once.
        solvers: names of installed solvers, or solvers themselves. Worker processes must be able to unpickle
            the latter: a failure to do so breaks the pool.
        executor: runs the solves: a pool of threads or processes, or any executor with futures as in
            ``concurrent.futures``; None = this process, one after the other. Graphs and answers are sent as
            wire-format bytes, and answers are judged again here. The executor stays open. Solves that are
            lost because a process died are submitted once more, which a ``ProcessPoolExecutor`` refuses.
        time_limit: seconds for each solve.
        fixed_order: as in :func:`checkmate.solve`.
        threads: for each solve.
        seed: for each solve.
        cache: as in :func:`checkmate.solve`; shared by all workers.
        on_progress: called in this process with ``(done, total, answer)`` after each answer or failure. If it
            raises, or on Ctrl-C, solves that have not started are cancelled; running ones continue to their
            time limit.

    Returns:
        the frontier. A solver that fails is listed in its ``errors``; the other solves go on.

    Raises:
        BudgetError, PluginError, ValueError: as :func:`checkmate.solve`, before any solver starts.
        SweepInterrupted: on Ctrl-C, a ``KeyboardInterrupt``; its ``frontier`` holds the answers until then.

    >>> from checkmate import DFGraph
    >>> deps = [[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]]
    >>> chain = DFGraph.from_nodes(cost=[1] * 8, size=[8] * 8, deps=deps)
    >>> frontier = sweep(chain, ["50%", "80%", "100%"], ["heuristics"])
    >>> [(point.peak, point.cost) for point in frontier.points]
    [(32, 9.0), (40, 8.0)]
    >>> frontier.at(39).cost
    9.0
    """
    if isinstance(budgets, str) or isinstance(solvers, str):
        raise BudgetError("budgets and solvers are lists: write ['60%', '80%'] and ['auto']")
    whole = keep_all_peak(graph)
    sizes = tuple(dict.fromkeys(parse_budget(budget, whole) for budget in budgets))
    engines = [(solver, engine_of(solver)) for solver in solvers]
    settings = {"time_limit": time_limit, "fixed_order": fixed_order, "threads": threads, "seed": seed}
    store = ScheduleCache() if cache is True else cache or None
    content = graph_bytes(graph)
    jobs = [
        _Job(
            problem=Problem(graph=graph, budget=size, **settings),  # type: ignore[arg-type]
            engine=engine,
            arguments={
                "graph": content,
                "budget": size,
                "solver": engine.name if isinstance(solver, str) else solver,
                "settings": settings,
                "cache": str(store.directory) if store else None,
            },
        )
        for size in sizes
        for solver, engine in engines
    ]
    results: dict[int, Solution | Failure] = {}
    try:
        with closing(_serially(jobs) if executor is None else _in_pool(jobs, executor)) as incoming:
            for k, result in incoming:
                results[k] = result
                if on_progress is not None:
                    on_progress(len(results), len(jobs), result)
    except KeyboardInterrupt as error:
        raise SweepInterrupted(_frontier(graph, results), len(jobs)) from error
    return _frontier(graph, results)


def _frontier(graph: DFGraph, results: Mapping[int, Solution | Failure]) -> Frontier:
    """The frontier of the results, in the order of the jobs."""
    ordered = [results[k] for k in sorted(results)]
    return Frontier(
        graph=graph,
        answers=tuple(result for result in ordered if isinstance(result, Solution)),
        errors=tuple(result for result in ordered if isinstance(result, Failure)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    problem: Problem
    engine: Engine
    arguments: dict[str, Any]  # of _answered: all that is sent

    def failed(self, error: BaseException) -> Failure:
        return Failure(budget=self.problem.budget, solver=self.engine.name, error=error)

    def result(self, answer: bytes | tuple[str, str]) -> Solution | Failure:
        """Judge the answer."""
        if isinstance(answer, tuple):
            kind = getattr(errors, answer[0], SolverError)
            known = isinstance(kind, type) and issubclass(kind, (errors.PluginError, SolverError))
            return self.failed((kind if known else SolverError)(answer[1]))
        try:
            claim, _ = read_claim(answer, self.problem.graph)
            solution = judged(claim, self.engine.name, self.problem)
        except CheckmateError as error:
            return self.failed(error)
        return dataclasses.replace(solution, seconds=claim.seconds)


def _serially(jobs: list[_Job]) -> Generator[tuple[int, Solution | Failure], None, None]:
    try:
        for k, job in enumerate(jobs):
            yield k, job.result(_answered(**job.arguments))
    finally:
        _graph.cache_clear()


def _in_pool(jobs: list[_Job], executor: Executor) -> Generator[tuple[int, Solution | Failure], None, None]:
    """Yield each result when it arrives; submit jobs that are lost because a process died once more."""
    lost = yield from _submitted(jobs, range(len(jobs)), executor)
    lost = yield from _submitted(jobs, lost, executor)
    for k, error in lost.items():
        twice = f"tried twice, since processes of the pool died: {one_line(error)}"
        yield k, jobs[k].failed(type(error)(twice))


def _submitted(
    jobs: list[_Job], numbers: Iterable[int], executor: Executor
) -> Generator[tuple[int, Solution | Failure], None, dict[int, BrokenExecutor]]:
    """Submit jobs and yield each result when it arrives; when ended early, cancel jobs that have not started.

    Returns:
        the error of each job that was lost because a process of the pool died.
    """
    futures: dict[Future[bytes | tuple[str, str]], int] = {}
    lost: dict[int, BrokenExecutor] = {}
    try:
        for k in numbers:
            try:
                futures[executor.submit(_answered, **jobs[k].arguments)] = k
            except BrokenExecutor as error:
                lost[k] = error
        for future in as_completed(futures):
            k = futures[future]
            try:
                result = jobs[k].result(future.result())
            except BrokenExecutor as error:
                lost[k] = error
                continue
            except ANYTHING as error:  # it was cancelled, or its arguments can't be sent
                result = jobs[k].failed(error)
            yield k, result
    finally:
        for future in futures:
            future.cancel()
    return lost


def _answered(
    *, graph: bytes, budget: int, solver: str | Solver, settings: dict[str, Any], cache: str | None
) -> bytes | tuple[str, str]:
    """Solve, in a worker or in this process: an answer as bytes, or the class and the text of an error.

    Errors are sent as text, because an exception of foreign code may not survive a pickle.
    """
    try:
        store = ScheduleCache(cache) if cache is not None else None
        answer = solve(_graph(graph), budget, solver=solver, cache=store, throw=False, **settings)
        if answer.interrupted:  # the interrupt was meant for the whole sweep
            raise KeyboardInterrupt
        return claim_bytes(answer)
    except CheckmateError as error:
        return type(error).__name__, str(error)
    except ANYTHING as error:
        return "SolverError", one_line(error)


@lru_cache(maxsize=1)
def _graph(content: bytes) -> DFGraph:
    return read_graph(content)


def _staircase(answers: Iterable[Solution]) -> list[Solution]:
    """The answers with a schedule that none beats in both peak and cost; peaks ascend, costs descend."""
    stairs: list[Solution] = []
    found = [answer for answer in answers if answer.timeline is not None]
    for answer in sorted(found, key=lambda answer: (answer.peak or 0, answer.cost)):
        if not stairs or answer.cost < stairs[-1].cost:
            stairs.append(answer)
    return stairs


def _disproved(answer: Solution, stairs: list[Solution]) -> Failure | None:
    """A failure, if some schedule within the budget of ``answer`` costs less than its lower bound."""
    cheapest = next((s for s in reversed(stairs) if (s.peak or 0) <= answer.problem.budget), None)
    if cheapest is None or answer.bound <= cheapest.cost * (1 + _TOLERANCE):
        return None
    budget = answer.problem.budget
    claim = (
        "there is no schedule" if math.isinf(answer.bound) else f"no schedule costs less than {answer.bound}"
    )
    message = (
        f"solver {answer.solver!r} claims that {claim} within {budget} bytes, but {cheapest.solver!r} "
        f"found one that costs {cheapest.cost} with a peak of {cheapest.peak} bytes"
    )
    return Failure(budget=budget, solver=answer.solver, error=SolverError(message))

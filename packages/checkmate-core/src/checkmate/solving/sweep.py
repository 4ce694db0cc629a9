"""A sweep: every budget with every solver, perhaps in parallel.

Where the schedule for a smaller budget is cheaper than what a solver found, the solver may go on from that
schedule, in a second round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from checkmate import errors
from checkmate.errors import BudgetError, CheckmateError, SolverError
from checkmate.files.cache import ScheduleCache
from checkmate.files.claim import claim_bytes, read_claim
from checkmate.files.serialize import graph_bytes, read_graph, read_schedule, schedule_bytes
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.plugins import Solver
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.problem.problem import Problem, keep_all_peak
from checkmate.problem.solution import Solution, Status
from checkmate.solving.api import Engine, engine_of, solve
from checkmate.solving.frontier import Failure, Frontier, disproves
from checkmate.solving.judging import judged
from checkmate.units import Budget, parse_budget

__all__ = ["Failure", "Frontier", "SweepInterrupted", "sweep"]


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a sweep; the answers until then are kept.

    Attributes:
        frontier: the frontier of the answers and failures until then.
        total: number of solves, finished or not.
    """

    def __init__(self, frontier: Frontier, total: int) -> None:
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
        budgets: each as in :func:`checkmate.solve`; budgets of the same bytes are solved once.
        solvers: names of installed solvers, or solver objects, which worker processes must be able to
            unpickle: a failure to do so breaks the pool.
        executor: runs the solves: a pool of threads or processes, or any executor with futures as in
            ``concurrent.futures``; None = this process, one after the other. Graphs and answers are sent as
            wire-format bytes, and answers are judged again here. The executor stays open. Solves that it
            loses, as when a worker dies, are submitted once more, which a broken ``ProcessPoolExecutor``
            refuses.
        time_limit: seconds for each solve. A solver with the attribute ``uses_start`` (``"auto"``) gets them
            a second time for each budget that a smaller budget's answer beats, and starts from that answer.
        fixed_order: as in :func:`checkmate.solve`.
        threads: threads of each solve.
        seed: seed of each solve.
        cache: as in :func:`checkmate.solve`; shared by all workers.
        on_progress: called in this process with ``(done, total, answer)`` after each answer or failure; the
            total grows when the second round begins. If it raises, or on Ctrl-C, solves that have not started
            are cancelled; running ones continue to their time limit.

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

    def answer(jobs: Mapping[int, _Job], done: int) -> None:
        with closing(_serially(jobs) if executor is None else _in_pool(jobs, executor)) as incoming:
            for k, result in incoming:
                results[k] = _better(result, results.get(k))
                done += 1
                if on_progress is not None:
                    on_progress(done, total, result)

    total = len(jobs)
    try:
        answer(dict(enumerate(jobs)), 0)
        again = _beaten(jobs, results, _frontier(graph, results))
        total += len(again)
        answer(again, len(jobs))
    except KeyboardInterrupt as error:
        raise SweepInterrupted(_frontier(graph, results), total) from error
    return _frontier(graph, results)


def _beaten(
    jobs: Sequence[_Job], results: Mapping[int, Solution | Failure], frontier: Frontier
) -> dict[int, _Job]:
    """Jobs whose answer costs more than the best known for their budget; they start from that schedule."""
    again: dict[int, _Job] = {}
    for k, job in enumerate(jobs):
        result = results[k]
        if isinstance(result, Failure) or not job.uses_start:
            continue
        best = frontier.at(job.problem.budget)
        if best is None or best.schedule is None or best.status is Status.OPTIMAL:
            continue
        if best.cost < result.cost:
            again[k] = job.starting_from(best.schedule)
    return again


def _better(result: Solution | Failure, before: Solution | Failure | None) -> Solution | Failure:
    """The cheaper of two answers to one question, with the higher bound; a failure only without an answer.

    If the later answer disproves the earlier bound, the earlier one stays: the frontier reports it as wrong.
    """
    if before is None or isinstance(result, Failure):
        return before or result
    if isinstance(before, Failure) or result.timeline is None or result.cost >= before.cost:
        return before
    if disproves(result.cost, before.bound):
        return before
    bound = min(max(result.bound, before.bound), result.cost)
    found = Solution.found(
        result.problem, result.timeline, bound=bound, solver=result.solver, origin=result.origin
    )
    return dataclasses.replace(found, seconds=result.seconds + before.seconds)


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
    arguments: dict[str, Any]  # arguments of _answered: everything that is sent

    @property
    def uses_start(self) -> bool:
        return bool(getattr(self.engine.load(), "uses_start", False))

    def starting_from(self, schedule: Schedule) -> _Job:
        start = schedule_bytes(schedule, self.problem.graph)
        return dataclasses.replace(self, arguments={**self.arguments, "start": start})

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
        except ANYTHING as error:  # the answer of a worker may be anything
            return self.failed(error)
        return dataclasses.replace(solution, seconds=claim.seconds)


def _serially(jobs: Mapping[int, _Job]) -> Generator[tuple[int, Solution | Failure], None, None]:
    try:
        for k, job in jobs.items():
            yield k, job.result(_answered(**job.arguments))
    finally:
        _graph.cache_clear()


def _in_pool(
    jobs: Mapping[int, _Job], executor: Executor
) -> Generator[tuple[int, Solution | Failure], None, None]:
    """Yield each result when it arrives; submit lost jobs once more."""
    lost = yield from _submitted(jobs, executor, BrokenExecutor)
    lost = yield from _submitted({k: jobs[k] for k in lost}, executor, RuntimeError)
    for k, error in lost.items():
        twice = SolverError(f"tried twice, since the executor lost the solve: {one_line(error)}")
        twice.__cause__ = error
        yield k, jobs[k].failed(twice)


def _submitted(
    jobs: Mapping[int, _Job], executor: Executor, refusal: type[Exception]
) -> Generator[tuple[int, Solution | Failure], None, dict[int, BaseException]]:
    """Submit jobs and yield each result when it arrives; when ended early, cancel jobs that have not started.

    A job is also lost if the executor refuses it with the exception ``refusal``.

    Returns:
        the error of each job that the executor lost, as when a worker dies: solves return their own errors.
    """
    futures: dict[Future[bytes | tuple[str, str]], int] = {}
    lost: dict[int, BaseException] = {}
    try:
        for k, job in jobs.items():
            try:
                futures[executor.submit(_answered, **job.arguments)] = k
            except refusal as error:
                lost[k] = error
        for future in as_completed(futures):
            k = futures[future]
            try:
                answer = future.result()
            except ANYTHING as error:
                lost[k] = error
            else:
                yield k, jobs[k].result(answer)
    finally:
        for future in futures:
            future.cancel()
    return lost


def _answered(
    *,
    graph: bytes,
    budget: int,
    solver: str | Solver,
    settings: dict[str, Any],
    cache: str | None,
    start: bytes | None = None,
) -> bytes | tuple[str, str]:
    """Solve, in a worker or in this process: an answer as bytes, or the class and the text of an error.

    Errors are sent as text, because an exception of foreign code may not survive a pickle.
    """
    try:
        store = ScheduleCache(cache) if cache is not None else None
        whole = _graph(graph)
        known = None if start is None else read_schedule(start, whole)
        answer = solve(whole, budget, solver=solver, cache=store, start=known, throw=False, **settings)
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

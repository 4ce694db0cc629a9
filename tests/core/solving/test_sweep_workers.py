"""A sweep's solves in threads and processes: the same answers in each, and a failure fails only its solve."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.core.graphs import CHAIN
from tests.core.solving.said import Says, shape

from checkmate import Problem, Schedule, ScheduleCache, Solution, SolverError, sweep
from checkmate.files.serialize import schedule_bytes
from checkmate.heuristics import BestHeuristic, KeepAll
from checkmate.solving.sweep import Failure

ODD = """
import os
from dataclasses import dataclass
from checkmate import InvalidScheduleError, Reason
from checkmate.heuristics import KeepAll

@dataclass(frozen=True)
class Dies:
    def solve(self, problem):
        os._exit(7)

@dataclass(frozen=True)
class Fails:
    def solve(self, problem):
        raise InvalidScheduleError(0, "op 0", Reason.LOST_OUTPUT)  # which can't be unpickled

@dataclass(frozen=True)
class DiesOnce:
    mark: str
    def solve(self, problem):
        if not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os._exit(7)
        return KeepAll().solve(problem)
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A module of solvers that worker processes can import."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd_solvers.py").write_text(ODD)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("odd_solvers")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def processes(odd: Any) -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_a_solver_that_fails_stops_no_other(odd: Any) -> None:
    frontier = sweep(CHAIN, ["60%", "100%"], [odd.Fails(), "heuristics"])
    assert [(failure.budget, failure.solver) for failure in frontier.errors] == [(24, "Fails"), (40, "Fails")]
    assert all(isinstance(failure.error, SolverError) for failure in frontier.errors)
    assert "failed: InvalidScheduleError: step 0, op 0" in str(frontier.errors[0].error)
    assert len(frontier.points) == 2


def test_a_solver_that_ends_its_process_is_stopped_first() -> None:
    def leave(problem: Problem) -> Solution:
        raise SystemExit(3)

    (failure,) = sweep(CHAIN, [40], [Says(leave)]).errors
    assert isinstance(failure.error, SolverError)
    assert str(failure.error) == "solver 'Says' failed: SystemExit: 3"


def test_where_it_runs_makes_no_difference(processes: Executor, odd: Any) -> None:
    questions = (CHAIN, ["20%", "60%", "80%", "100%"], ["keep-all", BestHeuristic(), odd.Fails()])
    here = sweep(*questions)
    with ThreadPoolExecutor(2) as threads:
        for executor in (threads, processes):
            there = sweep(*questions, executor=executor)
            assert shape(there) == shape(here)
            assert [(a.status, a.bound, a.solver) for a in there.answers] == [
                (a.status, a.bound, a.solver) for a in here.answers
            ]
            assert [(f.budget, f.solver, str(f.error)) for f in there.errors] == [
                (f.budget, f.solver, str(f.error)) for f in here.errors
            ]


def test_a_worker_that_dies_or_gets_no_task_is_an_error(odd: Any) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        frontier = sweep(CHAIN, [40], ["keep-all", Says(lambda p: KeepAll().solve(p))], executor=executor)
        assert shape(frontier) == [(40, 8.0, "keep-all")]
        assert "<lambda>" in str(frontier.errors[0].error)  # which can't be sent
        frontier = sweep(CHAIN, [40, 24], [odd.Dies()], executor=executor)
        causes = [type(failure.error.__cause__).__name__ for failure in frontier.errors]
        assert causes == ["BrokenProcessPool"] * 2
        assert all("tried twice, since the executor lost" in str(f.error) for f in frontier.errors)
        again = sweep(CHAIN, [40], ["keep-all"], executor=executor)
        assert [failure.solver for failure in again.errors] == ["keep-all"]


class Dying(ThreadPoolExecutor):
    """Loses its first tasks, as a pool does when one of its processes dies, and starts again."""

    def __init__(self, lost: int, error: type[Exception] = BrokenExecutor) -> None:
        super().__init__(1)
        self.lost, self.given, self.error = lost, 0, error

    def submit(self, *task: Any, **arguments: Any) -> Future[Any]:  # type: ignore[override]
        self.given += 1
        if self.given > self.lost:
            return super().submit(*task, **arguments)
        future: Future[Any] = Future()
        future.set_exception(self.error("it died"))
        return future


class WorkerCrashedError(Exception):
    """An error of a cluster that is no ``BrokenExecutor``, as Ray's."""


@pytest.mark.parametrize("error", [BrokenExecutor, WorkerCrashedError])
def test_solves_of_a_dead_worker_are_tried_once_more(error: type[Exception]) -> None:
    heard: list[int] = []
    with Dying(lost=2, error=error) as executor:
        frontier = sweep(
            CHAIN, [24, 32, 40], ["heuristics"], executor=executor, on_progress=lambda *a: heard.append(a[0])
        )
        assert executor.given == 5
    assert shape(frontier) == shape(sweep(CHAIN, [24, 32, 40], ["heuristics"]))
    assert [answer.problem.budget for answer in frontier.answers] == [24, 32, 40]
    assert heard == [1, 2, 3]

    with Dying(lost=6) as executor:
        frontier = sweep(CHAIN, [24, 32, 40], ["heuristics"], executor=executor)
    assert frontier.answers == ()
    assert [str(failure.error) for failure in frontier.errors] == [
        "tried twice, since the executor lost the solve: BrokenExecutor: it died"
    ] * 3


def test_a_cluster_of_dask_that_loses_a_worker_answers_all(odd: Any, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        client.register_worker_callbacks(partial(sys.path.insert, 0, str(Path(odd.__file__).parent)))
        solver = odd.DiesOnce(str(tmp_path / "died"))
        frontier = sweep(CHAIN, [40, 41], [solver], executor=client.get_executor())
    assert (tmp_path / "died").exists()
    assert [answer.problem.budget for answer in frontier.answers] == [40, 41]
    assert not frontier.errors


def test_an_executor_that_is_shut_is_the_callers_mistake() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        sweep(CHAIN, [40], ["keep-all"], executor=executor)


def test_a_solve_that_is_lost_as_the_executor_is_shut_loses_no_other() -> None:
    class Shut(ThreadPoolExecutor):
        def submit(self, *task: Any, **arguments: Any) -> Future[Any]:  # type: ignore[override]
            if arguments["budget"] == 40:
                return super().submit(*task, **arguments)
            self.shutdown()
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    frontier = sweep(CHAIN, [40, 24], ["heuristics"], executor=Shut(1))
    assert shape(frontier) == [(40, 8.0, "heuristics")]
    assert "CancelledError" in str(frontier.errors[0].error) or "shutdown" in str(frontier.errors[0].error)


class Lying(Executor):
    """A worker that returns another answer than it has computed."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def submit(self, *_: object, **__: object) -> Future[object]:  # type: ignore[override]
        future: Future[object] = Future()
        future.set_result(self.answer)
        return future


def test_a_cached_answer_is_judged_again() -> None:
    too_much = schedule_bytes(
        Schedule.from_sequence(CHAIN, range(8)), CHAIN, {"status": "optimal", "bound": 8.0}
    )
    frontier = sweep(CHAIN, [24], ["keep-all"], executor=Lying(too_much))
    assert "over the budget of 24" in str(frontier.errors[0].error)
    for nonsense in (b"", b"{}", ("SystemExit", "no"), ("KeyError", "no"), None):
        frontier = sweep(CHAIN, [24], ["keep-all"], executor=Lying(nonsense))
        assert not frontier.answers
        assert isinstance(frontier.errors[0].error, Exception)


@pytest.mark.parametrize("pooled", [False, True])
def test_progress_is_reported_and_an_exception_of_the_listener_ends_it(odd: Any, pooled: bool) -> None:
    heard: list[tuple[int, int, Solution | Failure]] = []
    with ThreadPoolExecutor(1) as executor:
        pool = executor if pooled else None
        frontier = sweep(
            CHAIN, [24, 40], ["keep-all", odd.Fails()], executor=pool, on_progress=lambda *a: heard.append(a)
        )
        assert [(done, total) for done, total, _ in heard] == [(1, 4), (2, 4), (3, 4), (4, 4)]
        told = {id(answer) for _, _, answer in heard}
        assert told == {id(answer) for answer in (*frontier.answers, *frontier.errors)}

        asked: list[int] = []
        go_on = threading.Event()

        def slowly(problem: Problem) -> Solution:
            asked.append(problem.budget)
            if len(asked) == 2:
                go_on.wait(30)  # until the sweep is over
            return KeepAll().solve(problem)

        def enough(*_: object) -> None:
            raise KeyboardInterrupt

        try:
            with pytest.raises(KeyboardInterrupt):
                sweep(CHAIN, range(40, 50), [Says(slowly)], executor=pool, on_progress=enough)
        finally:
            go_on.set()
    assert len(asked) <= 2


def test_a_sweep_fills_the_cache_and_reads_it(tmp_path: Path, processes: Executor) -> None:
    cache = ScheduleCache(tmp_path)
    first = sweep(CHAIN, ["20%", "60%", "100%"], ["heuristics"], cache=cache, executor=processes)
    assert len(cache) == 2
    second = sweep(CHAIN, ["20%", "60%", "100%"], ["heuristics"], cache=cache)
    assert shape(first) == shape(second)
    assert all("cache" in answer.origin for answer in second.answers if answer.schedule is not None)

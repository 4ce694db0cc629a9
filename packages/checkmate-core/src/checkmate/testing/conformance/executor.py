"""The laws of executors: under every schedule, the results are those of the plain program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from checkmate.analysis import floor
from checkmate.api import minimum_budget, solve
from checkmate.plugins import EXECUTORS, Executor, Traced
from checkmate.problem import keep_all_peak
from checkmate.schedule import Schedule
from checkmate.testing.conformance.harness import ConformanceError, required

__all__ = ["ExecutorConformance"]

_SHARES = (0.0, 0.25, 0.5, 0.75)


class ExecutorConformance:
    """Override :meth:`traced` and :meth:`run`; and :meth:`executor`, or set ``executor_name``.

    If the order of the ops that really run is observable, override :meth:`ran` too.

    Attributes:
        executor_name: of an installed executor.
        solver: name of the solver whose schedules are run.
    """

    executor_name: str | None = None
    solver: str = "heuristics"

    def executor(self) -> Executor:
        """A new executor, for each check."""
        if self.executor_name is None:
            raise NotImplementedError(f"{type(self).__name__}: set executor_name, or override executor()")
        return EXECUTORS.load(self.executor_name)

    def traced(self) -> Traced:
        """A newly traced program."""
        raise NotImplementedError(f"{type(self).__name__}: override traced()")

    def run(self, bound: Callable[..., Any]) -> Sequence[Any]:
        """Call the callable from ``bind``, always with the same arguments and from the same state.

        Returns:
            All results that must be the same, as arrays or numbers: loss, gradients, updated statistics.
        """
        raise NotImplementedError(f"{type(self).__name__}: override run()")

    def ran(self, bound: Callable[..., Any]) -> Sequence[int] | None:
        """The ops that the last :meth:`run` of ``bound`` really computed, in order; None if unknown."""
        return None

    def same(self, one: Any, other: Any) -> bool:
        """Whether two results are equal; by default bit by bit, NaN equal to NaN."""
        a, b = np.asarray(one), np.asarray(other)
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()

    def test_runs(self) -> None:
        """The schedule that computes everything once can be bound and run, and gives results."""

        def check() -> None:
            try:
                results = self._results(self._everything(), self.traced())[0]
            except Exception as error:
                raise ConformanceError(f"the plain schedule: {type(error).__name__}: {error}") from error
            if len(results) == 0:
                raise ConformanceError("run() gives no result: there is nothing to compare")

        required(check)

    def test_results_are_those_of_the_plain_schedule(self) -> None:
        """For budgets down to the least with a known schedule, the results stay the same."""

        def check() -> None:
            expected = self._plain()
            if expected is None:
                return
            for budget, schedule in self._schedules():
                try:
                    results = self._results(schedule, self.traced())[0]
                except Exception as error:
                    raise ConformanceError(f"budget {budget}: {type(error).__name__}: {error}") from error
                self._compare(expected, results, f"with a budget of {budget} bytes")

        required(check)

    def test_runs_again(self) -> None:
        """A bound program can be called again, with the same results."""

        def check() -> None:
            if self._plain() is None:
                return
            for budget, schedule in self._schedules():
                bound = self._bound(schedule, self.traced())
                if bound is not None and (first := self._tried(bound)) is not None:
                    second = self._tried(bound)
                    if second is None:
                        raise ConformanceError(f"budget {budget}: the second call fails")
                    self._compare(first, second, f"in the second call, with a budget of {budget} bytes")

        required(check)

    def test_runs_the_schedule(self) -> None:
        """The ops that really run are those of the schedule, in its order; skipped if :meth:`ran` is None."""
        bound = self._bound(self._everything(), self.traced())
        if bound is None or self._tried(bound) is None or self.ran(bound) is None:
            pytest.skip("ran() does not say which ops ran")

        def check() -> None:
            for budget, schedule in self._schedules():
                bound = self._bound(schedule, self.traced())
                if bound is None or self._tried(bound) is None:
                    continue
                seen, planned = list(self.ran(bound) or ()), schedule.sequence.tolist()
                if seen != planned:
                    raise ConformanceError(f"budget {budget}: the schedule runs {planned}, but {seen} ran")

        required(check)

    def test_refuses_what_the_judge_rejects(self) -> None:
        """A schedule that computes nothing, although there are outputs, gives an error and no results."""

        def check() -> None:
            bound = self._bound(Schedule.of([]), self.traced())
            if bound is not None and self._tried(bound) is not None:
                raise ConformanceError("the empty schedule was run: an invalid schedule must raise an error")

        required(check)

    def _everything(self) -> Schedule:
        graph = self.traced().graph
        return Schedule.from_sequence(graph, range(graph.n_ops))

    def _schedules(self) -> Iterator[tuple[int, Schedule]]:
        """Schedules for some budgets, from the least with a known schedule to the plain program's peak."""
        graph = self.traced().graph
        least = minimum_budget(graph).peak or floor(graph).size
        most = keep_all_peak(graph)
        for budget in dict.fromkeys([*(least + round(x * (most - least)) for x in _SHARES), most]):
            found = solve(graph, max(1, budget), solver=self.solver, throw=False)
            if found.schedule is not None:
                yield budget, found.schedule

    def _results(self, schedule: Schedule, traced: Traced) -> tuple[Sequence[Any], Callable[..., Any]]:
        bound = self.executor().bind(traced, schedule)
        return self.run(bound), bound

    def _plain(self) -> Sequence[Any] | None:
        bound = self._bound(self._everything(), self.traced())
        return None if bound is None else self._tried(bound)

    def _bound(self, schedule: Schedule, traced: Traced) -> Callable[..., Any] | None:
        try:
            return self.executor().bind(traced, schedule)
        except Exception:  # noqa: BLE001 - for another check
            return None

    def _tried(self, bound: Callable[..., Any]) -> Sequence[Any] | None:
        try:
            return self.run(bound)
        except Exception:  # noqa: BLE001 - for another check
            return None

    def _compare(self, expected: Sequence[Any], results: Sequence[Any], when: str) -> None:
        if len(expected) != len(results):
            raise ConformanceError(f"{when}: {len(results)} results instead of {len(expected)}")
        for i, (one, other) in enumerate(zip(expected, results, strict=True)):
            if not self.same(one, other):
                raise ConformanceError(f"{when}: result {i} is {other!r} instead of {one!r}")

"""The laws of executors: what the simulator says of a schedule is what the machine does, step by step.

Let σ be a valid schedule of a traced program, M the simulator's count. Under σ the results equal the
program's, to the bit; the ops run in the order of σ; after each op M bytes are held, and while it runs at
most M; nothing is left at the end. Schedules are drawn: they recompute, free early and late, and change
the order where the executor says that it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import reject
from hypothesis import strategies as st

from checkmate.analysis import in_vain
from checkmate.errors import InvalidScheduleError, UnsupportedScheduleError
from checkmate.model.schedule import Schedule
from checkmate.plugins import EXECUTORS, Executor, Observed, Traced, Trial
from checkmate.problem.problem import keep_all_peak
from checkmate.simulate import Timeline, simulate
from checkmate.solving.api import minimum_budget, solve
from checkmate.testing.code import graph_code, schedule_code
from checkmate.testing.conformance.harness import ConformanceError, ManyExamples, for_all, required
from checkmate.testing.strategies import schedules, valid_schedules

__all__ = ["ExecutorConformance"]

_Found = TypeVar("_Found")
_SHARES = (0.0, 0.25, 0.5, 0.75)
_memory: dict[object, dict[object, Any]] = {}
"""Facts of the trial under test that many checks share, such as calls of its programs; one trial only."""


class ExecutorConformance(ManyExamples):
    """Set ``executor_name``: every check then runs once for each trial of the executor's spec.

    For an executor that is not registered, override :meth:`executor` and :meth:`trials`. A class that tests
    a single program may override :meth:`traced` and :meth:`run` instead of :meth:`trials`, and beside these
    :meth:`plain`, and :meth:`observe` or :meth:`ran`.

    Attributes:
        executor_name: name of an installed executor.
        examples: the number of schedules that a check draws for each trial; ``--checkmate-examples``
            overrides it.
        reorders: as the feature in ``ExecutorSpec``: schedules with another order are drawn too. None = as in
            the spec.
    """

    executor_name: str | None = None
    examples: int = 200
    reorders: bool | None = None
    trial: Trial | None = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each check for each trial."""
        if found := self.trials():
            names = [trial.name for trial in found]
            # By class, so that all checks of a trial run in a row, and share what they know of it.
            metafunc.parametrize("checkmate_trial", found, ids=names, scope="class")

    @pytest.fixture(scope="class")
    @classmethod
    def checkmate_trial(cls) -> Trial | None:
        """The trial of a check; None without trials."""
        return None

    @pytest.fixture(autouse=True)
    def _one_trial(self, checkmate_trial: Trial | None) -> None:
        self.trial = checkmate_trial

    def executor(self) -> Executor:
        """A new executor, for each schedule."""
        if self.executor_name is None:
            raise NotImplementedError(f"{type(self).__name__}: set executor_name, or override executor()")
        return EXECUTORS.load(self.executor_name)

    def trials(self) -> Sequence[Trial]:
        """The programs to run; by default the trials of the spec."""
        return EXECUTORS.spec(self.executor_name).trials() if self.executor_name is not None else ()

    def traced(self) -> Traced:
        """The program, traced; the same graph at each call."""
        return self._trial.traced()

    def run(self, bound: Callable[..., Any]) -> Sequence[Any]:
        """Call what ``bind`` returned, always with the same arguments and from the same state.

        Returns:
            All results that must be the same, as arrays or numbers: loss, gradients, updated statistics.
        """
        return self._trial.run(bound)

    def plain(self) -> Sequence[Any]:
        """The results of the program alone; without a trial, the results of the schedule without repeats."""
        if self.trial is not None:
            return self.trial.plain()
        return self._results(self._everything())

    def observe(self, executor: Executor, traced: Traced, schedule: Schedule) -> Observed | None:
        """Bind, call, and record the allocator; None if it can't be observed on this machine."""
        return self.trial.observe(executor, traced, schedule) if self.trial is not None else None

    def ran(self, bound: Callable[..., Any]) -> Sequence[int] | None:
        """Where :meth:`observe` gives None: the ops that the last :meth:`run` ran, in order, if known."""
        return None

    def same(self, one: Any, other: Any) -> bool:
        """Whether two results are equal; by default bit by bit, NaN equal to NaN."""
        a, b = np.asarray(one), np.asarray(other)
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()

    def test_runs(self) -> None:
        """The schedule that computes everything once can be bound and run, and gives results."""

        def check() -> None:
            if len(self._results(self._everything())) == 0:
                raise ConformanceError("run() gives no result: there is nothing to compare")

        required(check)

    def test_results_are_those_of_the_program(self) -> None:
        """Under every valid schedule the results equal the results of the program alone, to the bit."""
        expected = self._known("plain", self.plain)

        def check(schedule: Schedule) -> None:
            self._compare(expected, self._results(schedule), schedule)

        self._for_all(check)

    def test_runs_again(self) -> None:
        """A bound program can be called again, with the same results."""

        def check(schedule: Schedule) -> None:
            bound = self._bound(schedule)
            first = [np.array(x) for x in self._tried(partial(self.run, bound), schedule)]
            second = self._tried(partial(self.run, bound), schedule)
            self._compare(first, second, schedule, "in the second call ")

        self._for_all(check, share=8)

    def test_runs_the_schedule(self) -> None:
        """The ops run in the order of the schedule, and no others run."""

        def ran(schedule: Schedule) -> Sequence[int] | None:
            seen = self._observed(schedule)
            if seen is not None:
                return seen.ops
            bound = self._bound(schedule)
            self._tried(partial(self.run, bound), schedule)
            return self.ran(bound)

        def check(schedule: Schedule) -> None:
            planned, found = schedule.sequence.tolist(), list(ran(schedule) or ())
            if found != planned:
                raise self._fault(f"the schedule runs the ops {planned}, but {found} ran", schedule)

        required(lambda: self._skip_if(ran(self._everything()) is None, "ran() does not say which ops ran"))
        self._for_all(check)

    def test_holds_what_the_simulator_counts(self) -> None:
        """After every op, and the frees that follow it, the simulator's bytes are held: no more, no less."""

        def check(schedule: Schedule, seen: Observed) -> None:
            _, held = _counted(simulate(self._graph, schedule))
            self._compare_bytes(
                schedule, seen, held, seen.held, "after", lambda x, y: x - seen.under <= y <= x + seen.over
            )

        self._for_all_observed(check)

    def test_needs_no_more_while_an_op_runs(self) -> None:
        """While an op runs, no more bytes are held than the simulator counts, its workspace included."""

        def check(schedule: Schedule, seen: Observed) -> None:
            peaks, _ = _counted(simulate(self._graph, schedule))
            self._compare_bytes(
                schedule, seen, peaks, seen.peaks, "while it runs", lambda x, y: y <= x + seen.over
            )

        self._for_all_observed(check)

    def test_leaves_nothing(self) -> None:
        """Once the results are dropped, no more is held than before the call."""

        def check(schedule: Schedule, seen: Observed) -> None:
            if seen.left != 0:
                raise self._fault(f"{seen.left} bytes are left after the call", schedule)

        self._for_all_observed(check)

    def test_refuses_what_the_judge_rejects(self) -> None:
        """``bind`` raises InvalidScheduleError for a schedule that is not valid."""
        graph = self._graph

        def check(schedule: Schedule) -> None:
            try:
                simulate(graph, schedule)
            except InvalidScheduleError:
                pass
            else:
                return
            try:
                self.executor().bind(self._traced, schedule)
            except InvalidScheduleError:
                return
            except Exception as error:
                problem = f"bind() raised {type(error).__name__}, not InvalidScheduleError: {error}"
                raise self._fault(problem, schedule) from error
            raise self._fault("bind() accepted a schedule that is not valid", schedule)

        for_all(st.one_of(st.just(Schedule.of([])), schedules(graph)), check, count=self.examples)

    @property
    def _trial(self) -> Trial:
        if self.trial is None:
            name = type(self).__name__
            raise NotImplementedError(
                f"{name}: set executor_name, or override trials(), or traced() and run()"
            )
        return self.trial

    def _known(self, what: object, ask: Callable[[], _Found]) -> _Found:
        """The answer to ``ask``, which is called once for each trial."""
        token = (type(self), self.executor_name, id(self.trial))
        if token not in _memory:
            _memory.clear()
        facts = _memory.setdefault(token, {"trial": self.trial})  # alive, so that its id stays its own
        if what not in facts:
            facts[what] = ask()
        found: _Found = facts[what]
        return found

    @property
    def _traced(self) -> Traced:
        return self._known("traced", self.traced)

    @property
    def _graph(self) -> Any:
        return self._traced.graph

    def _everything(self) -> Schedule:
        return Schedule.from_sequence(self._graph, range(self._graph.n_ops))

    def _schedules(self) -> st.SearchStrategy[Schedule]:
        """Schedules that free anywhere, and schedules that free right after the last read."""
        graph = self._graph
        drawn = valid_schedules(graph, reorder=self._reorders)
        lean = drawn.map(lambda schedule: Schedule.from_sequence(graph, schedule.sequence.tolist()))
        return st.one_of(lean, drawn, drawn)

    def _solved(self) -> list[Schedule]:
        """The schedule without repeats, and the heuristics' schedules for a few budgets."""
        graph, order = self._graph, not self._reorders
        most = keep_all_peak(graph)
        least = minimum_budget(graph, fixed_order=order).peak or most
        budgets = dict.fromkeys([most, *(least + round(x * (most - least)) for x in _SHARES)])
        ask = partial(solve, graph, solver="heuristics", fixed_order=order, throw=False)
        found = (ask(max(1, budget)).schedule for budget in budgets)
        return [self._everything(), *(schedule for schedule in found if schedule is not None)]

    @property
    def _reorders(self) -> bool:
        if self.reorders is not None:
            return self.reorders
        return self.executor_name is not None and "reorders" in EXECUTORS.spec(self.executor_name).features

    def _for_all(self, check: Callable[[Schedule], None], *, share: int = 1) -> None:
        __tracebackhide__ = True
        for schedule in self._known("solved", self._solved):
            required(partial(check, schedule))
        for_all(self._schedules(), check, count=max(1, self.examples // share))

    def _for_all_observed(self, check: Callable[[Schedule, Observed], None]) -> None:
        __tracebackhide__ = True

        def checked(schedule: Schedule) -> None:
            seen = self._observed(schedule)
            if seen is not None:
                check(schedule, seen)

        unseen = "observe() sees no allocations on this machine"
        required(lambda: self._skip_if(self._observed(self._everything()) is None, unseen))
        self._for_all(checked)

    @staticmethod
    def _skip_if(missing: bool, why: str) -> None:
        if missing:
            pytest.skip(why)

    def _observed(self, schedule: Schedule) -> Observed | None:
        def ask() -> Observed | None:
            return self._tried(lambda: self.observe(self.executor(), self._traced, schedule), schedule)

        return self._known(schedule, ask)

    def _bound(self, schedule: Schedule) -> Callable[..., Any]:
        return self._tried(lambda: self.executor().bind(self._traced, schedule), schedule)

    def _results(self, schedule: Schedule) -> Sequence[Any]:
        bound = self._bound(schedule)
        return self._tried(lambda: self.run(bound), schedule)

    def _tried(self, call: Callable[[], _Found], schedule: Schedule) -> _Found:
        """The result of ``call``; a schedule that the executor may refuse is replaced by another example."""
        try:
            return call()
        except UnsupportedScheduleError as error:
            if not schedule.keeps_base_order or in_vain(self._graph, schedule.sequence.tolist()):
                reject()
            raise self._fault(f"a schedule in base order is refused: {error}", schedule) from error
        except Exception as error:
            raise self._fault(f"{type(error).__name__}: {error}", schedule) from error

    def _compare(
        self, expected: Sequence[Any], results: Sequence[Any], schedule: Schedule, when: str = ""
    ) -> None:
        if len(expected) != len(results):
            raise self._fault(f"{when}there are {len(results)} results instead of {len(expected)}", schedule)
        for i, (one, other) in enumerate(zip(expected, results, strict=True)):
            if not self.same(one, other):
                raise self._fault(f"{when}result {i} is {other!r} instead of {one!r}", schedule)

    def _compare_bytes(
        self,
        schedule: Schedule,
        seen: Observed,
        counted: Sequence[int],
        measured: Sequence[int],
        when: str,
        holds: Callable[[int, int], bool],
    ) -> None:
        """Raise with a table of all ops if ``holds(counted, measured)`` is false for one of them."""
        if len(counted) != len(measured):
            raise self._fault(f"{len(counted)} ops should run, but {len(measured)} were seen", schedule)
        wrong = [k for k, (x, y) in enumerate(zip(counted, measured, strict=True)) if not holds(x, y)]
        if not wrong:
            return
        rows = (
            f"{'>' if k in wrong else ' '} {k:4} {x:12} {y:12}  {self._graph.op_label(op)}"
            for k, (op, x, y) in enumerate(zip(schedule.sequence.tolist(), counted, measured, strict=True))
        )
        table = "\n".join([f"   run    simulated     measured  {when} (bytes beyond the start)", *rows])
        bounds = f"allowed: {seen.under} bytes below the simulator's count, {seen.over} above"
        raise self._fault(f"the bytes held differ from the simulator's; {bounds}\n{table}", schedule)

    def _fault(self, problem: str, schedule: Schedule) -> ConformanceError:
        name = f"program {self.trial.name!r}: " if self.trial is not None else ""
        code = f"schedule = {schedule_code(schedule)}\n\ngraph = {graph_code(self._graph)}"
        return ConformanceError(f"{name}{problem}\n\n{code}")


def _counted(timeline: Timeline) -> tuple[list[int], list[int]]:
    """The simulator's bytes beyond the start: while each op runs, and after it and the frees that follow."""
    graph = timeline.graph
    at = [step for step, code in enumerate(timeline.schedule.codes.tolist()) if code >= 0]
    peaks = [int(timeline.memory[step]) - graph.base_size for step in at]
    inputs = sum(graph.tensors[t].size for t in graph.inputs)
    after = (timeline.resident_at(step) for step in [*at[1:], len(timeline.schedule)])
    return peaks, [sum(graph.tensors[t].size for t in resident) - inputs for resident in after]

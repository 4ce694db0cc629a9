"""The laws of solvers, c* being the optimum of a problem: bound ≤ c* ≤ cost, and no claim without proof.

Subclass, name the solver, and pytest runs the whole class::

    class TestEverest(SolverConformance):
        solver_name = "everest"
"""

from __future__ import annotations

import pickle  # noqa: TID251 - nothing is stored: process pools of the standard library send values so
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.plugins import SOLVERS, Solver
from checkmate.problem.problem import Problem, Progress
from checkmate.problem.solution import Solution, Status
from checkmate.testing.code import problem_code
from checkmate.testing.conformance.answers import LAWS, Answer, ask, exceeds, report, truth_about
from checkmate.testing.conformance.drawn import (
    LONG_LIMIT_S,
    OPS,
    TIME_LIMIT_S,
    large_step,
    larger_problems,
    of_every_size,
    problems_of_any_size,
)
from checkmate.testing.conformance.harness import (
    ConformanceError,
    ManyExamples,
    NoAnswerInTime,
    for_all,
    required,
    slowdown,
)
from checkmate.testing.conformance.variants import (
    asked_in_turn,
    copied,
    names,
    random_order,
    renamed,
    reordered,
    scaled,
)
from checkmate.testing.strategies import graphs, problems, training_steps

__all__ = ["SolverConformance"]

_TRIES, _LATE_S = 3, 1.5
"""A solver is late if each of ``_TRIES`` answers comes more than ``_LATE_S`` seconds after its time limit."""
_memory: dict[object, dict[Problem, Answer]] = {}
"""Answers of the solver under test, which many checks share; cleared for the next solver."""


class SolverConformance(ManyExamples):
    """Override :meth:`solver`, or set ``solver_name``; every check explains itself when it fails.

    Attributes:
        solver_name: name of an installed solver.
        guarantee: as in ``SolverSpec``: ``"exact"`` solvers must answer with proofs. None = the spec's.
        features: as in ``SolverSpec``: with ``"monotone"``, a larger budget never costs more. None = the
            spec's.
        examples: number of problems of a check. Most checks draw fewer; a check of single answers draws 2.35
            times this number. ``--checkmate-examples`` overrides it.
        slack_s: seconds after the time limit within which an answer must come.
    """

    solver_name: str | None = None
    guarantee: str | None = None
    features: frozenset[str] | None = None
    examples: int = 150
    slack_s: float = 15.0

    def solver(self) -> Solver:
        """A new solver, for each example."""
        if self.solver_name is None:
            raise NotImplementedError(f"{type(self).__name__}: set solver_name, or override solver()")
        return SOLVERS.load(self.solver_name)

    def test_answers(self) -> None:
        """``solve`` returns a Solution about this problem, with a schedule if and only if it found one."""

        def check(problem: Problem) -> None:
            answer = self._answer(problem)
            if answer.failure is not None:
                raise report(answer.failure, answer)

        self._for_all(problems(time_limit=TIME_LIMIT_S), check)

    def test_valid(self) -> None:
        """The judge accepts every schedule."""
        self._law("valid")

    def test_within_budget(self) -> None:
        """The peak is within the budget, to the byte."""
        self._law("within_budget")

    def test_fixed_order(self) -> None:
        """With ``fixed_order``, the first runs of the ops keep the base order."""
        self._law("fixed_order", fixed_order=True)

    def test_reports_what_the_judge_sees(self) -> None:
        """Cost and peak of the answer are those that the judge finds, and no cost is below the optimum."""
        self._law("reports")

    def test_optimal_is_optimal(self) -> None:
        """``OPTIMAL`` is claimed only for a schedule as cheap as the oracle's."""
        self._law("optimal")

    def test_infeasible_is_infeasible(self) -> None:
        """``INFEASIBLE`` is claimed only if the oracle finds no schedule either."""
        self._law("infeasible")

    def test_bound(self) -> None:
        """The lower bound is a number, and at most the optimum."""
        self._law("bound")

    def test_progress(self) -> None:
        """Progress reports are true: bounds at most the optimum, incumbents at least."""

        def check(problem: Problem) -> None:
            seen: list[Progress] = []
            self._ask(replace(problem, on_progress=seen.append))
            truth = truth_about(problem)
            for told in seen:
                early = truth.exact and told.incumbent is not None and exceeds(truth.cost, told.incumbent)
                if early or exceeds(told.bound, truth.cost):
                    raise report(f"a progress report is false: {told}", self._answer(problem))

        self._for_every_size(check)

    def test_exact_solvers_prove(self) -> None:
        """With the guarantee ``"exact"``, a tiny graph gets a proved optimum or a proof of infeasibility."""
        if self._guarantee != "exact":
            pytest.skip("the solver does not say that it is exact")

        def check(problem: Problem) -> None:
            answer = self._answer(problem)
            if answer.failure is None and answer.solution.status in (Status.FEASIBLE, Status.UNKNOWN):
                raise report("an exact solver proved nothing about a tiny graph", answer)

        self._for_all(problems(time_limit=TIME_LIMIT_S), check)

    def test_budgets_agree(self) -> None:
        """The bound for a larger budget is at most the cost found for a smaller one.

        The graphs are less tiny. With the feature ``"monotone"``, the larger budget's cost is not higher
        either; other solvers may do worse.
        """

        def check(pair: tuple[Problem, int]) -> None:
            problem, more = pair
            small, large = (self._answer(replace(problem, budget=problem.budget + x)) for x in (0, more))
            if small.failure is not None or large.failure is not None:
                return
            claims = f"{more} bytes more: {_what(large)}; the answer to the smaller budget is below"
            if exceeds(large.proved, small.cost):
                raise report(f"the proof for a larger budget is wrong. {claims}", small)
            if "monotone" in self._features and exceeds(large.cost, small.cost):
                raise report(f"a larger budget costs more. {claims}", small)

        self._for_all(st.tuples(larger_problems(), st.integers(0, 12)), check, share=0.5)

    def test_orders_agree(self) -> None:
        """If the order is free, a proof holds for every order in which the ops are listed."""

        @st.composite
        def twins(draw: st.DrawFn) -> tuple[Problem, Problem]:
            problem = draw(larger_problems(fixed_order=False))
            return problem, reordered(problem, draw(random_order(problem.graph)))

        def check(pair: tuple[Problem, Problem]) -> None:
            one, other = map(self._answer, pair)
            if one.failure is None and other.failure is None:
                for claim, found in ((one, other), (other, one)):
                    if exceeds(claim.proved, found.cost):
                        message = (
                            f"a schedule of cost {found.cost!r} is found if the ops are listed otherwise"
                        )
                        seen = report(message, claim)
                        raise ConformanceError(f"{seen}\n\n{report('The other way:', found)}")

        self._for_all(twins(), check, share=0.5)

    def test_names(self) -> None:
        """Names of the graph, its ops and tensors have no effect on status and cost."""

        def check(pair: tuple[Problem, list[str]]) -> None:
            self._same(pair[0], renamed(*pair), f"with the names {pair[1]!r} in turn")

        self._for_all(
            st.tuples(problems(time_limit=TIME_LIMIT_S), st.lists(names, min_size=3, max_size=8)), check
        )

    def test_byte_scale(self) -> None:
        """The unit of bytes has no effect: with all bytes × 2²⁰ status and cost stay the same."""

        def check(problem: Problem) -> None:
            self._same(scaled(problem, 2**10), scaled(problem, 2**30), "with all bytes × 2^20")

        source = st.one_of(graphs(max_ops=6), training_steps())
        self._for_all(problems(source, time_limit=TIME_LIMIT_S), check)

    def test_deterministic(self) -> None:
        """The same problem with the same seed has the same answer, schedule included."""

        def check(problem: Problem) -> None:
            first, second = (self._ask(copied(problem)) for _ in range(2))
            if _content(first) != _content(second):
                raise report(f"solved again, the answer differs: {_what(second)}", first)

        self._for_all(problems_of_any_size(), check, share=0.5)

    def test_time_limit(self) -> None:
        """Graphs of 40, 100 and 300 ops with a time limit of a second are answered in that time, and truly.

        The best of three answers may come 1.5 seconds after the limit, or later on a busy machine. An answer
        is not awaited for longer than ``slack_s`` after the limit.
        """
        for n_ops in OPS:
            required(partial(self._in_time, n_ops))

    def _in_time(self, n_ops: int) -> None:
        problem = Problem(graph=large_step(n_ops), budget=n_ops // 5, time_limit=LONG_LIMIT_S)
        what, times = f"the graph a chain of {n_ops} ops", []
        for _ in range(_TRIES):
            started = time.monotonic()
            try:
                answer = self._ask(copied(problem))
            except NoAnswerInTime as late:
                raise ConformanceError(f"{str(late).splitlines()[0]}, {what}") from None
            times.append(time.monotonic() - started)
            if fault := next(filter(None, (law(answer) for law in LAWS.values())), None):
                raise ConformanceError(f"{fault}; {what}")
            if times[-1] - LONG_LIMIT_S <= _LATE_S * slowdown():
                return
        raise ConformanceError(
            f"at best an answer takes {min(times):.1f} s, with a time limit of {LONG_LIMIT_S:g} s; {what}"
        )

    def test_does_not_mutate(self) -> None:
        """Problem and graph do not change, derived arrays included."""

        def check(problem: Problem) -> None:
            asked, pristine = copied(problem), copied(problem)
            _arrays(asked.graph)
            self._ask(asked)
            if asked != pristine or _arrays(asked.graph) != _arrays(pristine.graph):
                raise ConformanceError(
                    f"the solver changed the problem, or its graph\n\nproblem = {problem_code(problem)}"
                )

        self._for_all(problems_of_any_size(), check, share=0.25)

    def test_picklable(self) -> None:
        """Solver and solution survive ``pickle``, so that a process pool can run them."""

        def check(problem: Problem) -> None:
            try:
                solver: Solver = pickle.loads(pickle.dumps(self.solver()))  # noqa: S301 - our own bytes
                answer = ask(solver, problem, slack_s=self.slack_s)
                back: object = pickle.loads(pickle.dumps(answer.raw))  # noqa: S301
            except Exception as error:
                raise ConformanceError(
                    f"solver or solution can't be pickled: {type(error).__name__}: {error}"
                ) from error
            copy = replace(answer, raw=back)
            if answer.failure is None and _content(copy) != _content(answer):
                raise report("the solution differs after pickle", answer)

        self._for_all(problems(time_limit=TIME_LIMIT_S), check, share=0.17)

    def test_empty_graphs(self) -> None:
        """Graphs without ops or without outputs have a schedule, at least the empty one."""
        tensor, op = Tensor(name="t", size=1), Op(name="op", inputs=(), outputs=(0,), cost=1)
        for graph in (
            DFGraph(ops=(), tensors=()),
            DFGraph(ops=(), tensors=(tensor,), inputs=(0,), outputs=(0,)),
            DFGraph(ops=(op,), tensors=(tensor,)),
        ):
            required(partial(self._finds, Problem(graph=graph, budget=1)))

    def test_room_for_everything(self) -> None:
        """A budget that no schedule can exceed is met."""

        def check(graph: DFGraph) -> None:
            workspace = max((op.workspace for op in graph.ops), default=0)
            room = graph.fixed_size + 2 * sum(t.size for t in graph.tensors) + workspace
            problem = Problem(graph=graph, budget=max(1, room), time_limit=TIME_LIMIT_S)
            if self._answer(problem).failure is None:
                self._finds(problem)

        self._for_all(st.one_of(graphs(), training_steps()), check, share=0.5)

    def _finds(self, problem: Problem) -> None:
        answer = self._answer(problem)
        if answer.failure is not None or answer.solution.timeline is None:
            raise report(f"no schedule, although every schedule fits ({_what(answer)})", answer)

    def _law(self, law: str, *, fixed_order: bool | None = None) -> None:
        """Apply a law to the answers to all kinds of problems, and to variants of them asked right after."""

        def check(problem: Problem) -> None:
            for asked in asked_in_turn(problem):
                answer = self._answer(asked)
                if answer.failure is None and (fault := LAWS[law](answer)) is not None:
                    raise report(fault, answer)

        self._for_every_size(check, fixed_order=fixed_order)

    def _same(self, problem: Problem, variant: Problem, how: str) -> None:
        plain, changed = self._answer(problem), self._answer(variant)
        if plain.failure is None and _what(plain) != _what(changed):
            raise report(f"{how}, the answer differs: {_what(changed)}, not {_what(plain)}", plain)

    def _for_every_size(self, check: Callable[[Problem], None], *, fixed_order: bool | None = None) -> None:
        __tracebackhide__ = True
        for source, share in of_every_size(fixed_order=fixed_order):
            self._for_all(source, check, share=share)

    def _for_all(
        self, examples: st.SearchStrategy[Any], check: Callable[[Any], None], *, share: float = 1.0
    ) -> None:
        __tracebackhide__ = True
        for_all(examples, check, count=max(1, int(share * self.examples)))

    def _ask(self, problem: Problem) -> Answer:
        return ask(self.solver(), problem, slack_s=self.slack_s)

    def _answer(self, problem: Problem) -> Answer:
        """As :meth:`_ask`, but each problem is solved once."""
        token = (type(self), self.solver_name)
        if token not in _memory:
            _memory.clear()
        answers = _memory.setdefault(token, {})
        if problem not in answers:
            answers[problem] = self._ask(problem)
        return answers[problem]

    @property
    def _guarantee(self) -> str:
        if self.guarantee is not None:
            return self.guarantee
        return SOLVERS.spec(self.solver_name).guarantee if self.solver_name is not None else "heuristic"

    @property
    def _features(self) -> frozenset[str]:
        if self.features is not None:
            return self.features
        return SOLVERS.spec(self.solver_name).features if self.solver_name is not None else frozenset()


def _what(answer: Answer) -> str:
    """Status and cost in words; the cost without the digits in which float sums differ."""
    if answer.failure is not None:
        return answer.failure
    return f"{answer.solution.status}, cost {answer.solution.cost:.9g}"


def _content(answer: Answer) -> tuple[object, ...]:
    """All of an answer, except times."""
    if answer.failure is not None or not isinstance(answer.raw, Solution):
        return (answer.failure,)
    raw = answer.raw
    return raw.status, raw.schedule, repr(raw.cost), repr(raw.bound), raw.peak  # repr: nan is nan


def _arrays(graph: DFGraph) -> tuple[object, ...]:
    """The contents of all derived arrays of a graph, and whether they are writeable."""
    csr = (*graph.reads, *graph.makes, *graph.readers)
    arrays = (graph.sizes, graph.costs, graph.workspaces, graph.producer, *csr)
    return graph.digest, tuple((array.tobytes(), array.flags.writeable) for array in arrays)

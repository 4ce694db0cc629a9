"""A solver's answer to a problem, and the laws that it breaks: each fault has one name.

A fault is reported once: the cost of an invalid schedule is not checked, and a falsely claimed optimum is not
also a wrong bound. Claims about graphs that are too large for the oracle are compared with the cheapest
schedule of the built-in heuristics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from checkmate.analysis import needed_ops
from checkmate.errors import InvalidScheduleError
from checkmate.heuristics import BestHeuristic
from checkmate.model.schedule import Schedule
from checkmate.plugins import Solver
from checkmate.plugins.loader import ANYTHING
from checkmate.problem.problem import Problem
from checkmate.problem.solution import Solution, Status
from checkmate.simulate import Timeline, simulate
from checkmate.testing.code import problem_code, schedule_code
from checkmate.testing.conformance.harness import ConformanceError, NoAnswerInTime, within_time
from checkmate.testing.oracle import cheapest_schedule, optimum

__all__ = ["LAWS", "Answer", "Truth", "ask", "exceeds", "report", "truth_about"]

_TOLERANCE = 1e-9
"""Relative rounding error of costs, which are floats summed in any order."""
_MOST_OPS = 12
"""The oracle is asked about graphs of at most this number of needed ops: there it takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known about a problem without the solver under test.

    Attributes:
        cost: cost of the cheapest known schedule within the budget; infinite if none is known.
        schedule: this schedule; None if none is known.
        exact: whether no schedule is cheaper.
    """

    cost: float
    schedule: Schedule | None
    exact: bool


@lru_cache(maxsize=4096)
def truth_about(problem: Problem) -> Truth:
    """The optimum by the oracle for a tiny graph; for others, the cheapest schedule of the heuristics."""
    if int(needed_ops(problem.graph).sum()) <= _MOST_OPS:
        return Truth(optimum(problem), cheapest_schedule(problem), True)
    found = BestHeuristic().solve(problem)
    return Truth(found.cost, found.schedule, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer and the judge's verdict on it.

    Attributes:
        problem: the problem.
        raw: the value that ``solve`` returned.
        failure: why ``raw`` is not a valid answer; None if it is.
        judged: the judge's replay of the schedule; None without one, or if it is invalid.
        invalid: why the judge rejects the schedule.
    """

    problem: Problem
    raw: object
    failure: str | None = None
    judged: Timeline | None = None
    invalid: str | None = None

    @property
    def solution(self) -> Solution:
        """The answer, if it is a Solution."""
        if self.failure is not None or not isinstance(self.raw, Solution):
            raise ConformanceError(self.failure)
        return self.raw

    @property
    def keeps_order(self) -> bool:
        """Whether the first runs keep the base order, if the problem fixes it."""
        if not self.problem.fixed_order or self.judged is None:
            return True
        return self.judged.schedule.keeps_base_order

    @property
    def cost(self) -> float:
        """Cost of the schedule by the judge; infinite unless it solves the problem."""
        allowed = self.judged and self.judged.peak <= self.problem.budget and self.keeps_order
        return self.judged.cost if self.judged and allowed else math.inf

    @property
    def proved(self) -> float:
        """The least cost that a schedule can have, as the answer claims."""
        solution = self.solution
        if solution.status is Status.INFEASIBLE:
            return math.inf
        return self.cost if solution.status is Status.OPTIMAL else float(solution.bound)


def ask(solver: Solver, problem: Problem, *, slack_s: float) -> Answer:
    """Run the solver, and judge its answer.

    Raises:
        NoAnswerInTime: if it takes longer than the time limit plus ``slack_s``.
    """
    allowed_s = problem.time_limit + slack_s
    try:
        raw: object = within_time(lambda: solver.solve(problem), allowed_s)
    except NoAnswerInTime:
        message = f"no answer after {allowed_s:g} s; the time limit was {problem.time_limit:g} s"
        raise NoAnswerInTime(f"{message}\n\nproblem = {problem_code(problem)}") from None
    except ANYTHING as error:
        return Answer(problem=problem, raw=None, failure=f"solve() raised {type(error).__name__}: {error}")
    if (failure := _failure(problem, raw)) is not None or not isinstance(raw, Solution):
        return Answer(problem=problem, raw=raw, failure=failure)
    if raw.timeline is None:
        return Answer(problem=problem, raw=raw)
    try:
        judged = simulate(problem.graph, raw.timeline.schedule)
    except InvalidScheduleError as error:
        return Answer(problem=problem, raw=raw, invalid=str(error))
    return Answer(problem=problem, raw=raw, judged=judged)


def _failure(problem: Problem, raw: object) -> str | None:
    if not isinstance(raw, Solution):
        return f"solve() returned a {type(raw).__name__}, not a Solution"
    if raw.status not in list(Status):
        return f"the status is {raw.status!r}, which is not a Status"
    found = raw.status in (Status.OPTIMAL, Status.FEASIBLE)
    if found != (raw.timeline is not None):
        return f"the status is {raw.status}, but there is {'no' if found else 'a'} schedule"
    graphs = [raw.problem.graph] + ([raw.timeline.graph] if raw.timeline else [])
    if any(graph is not problem.graph and graph.digest != problem.graph.digest for graph in graphs):
        return "the answer is about another graph"
    return None


def exceeds(claim: float, truth: float) -> bool:
    """Whether ``claim`` is larger by more than rounding explains, or not a number."""
    return not claim <= truth + (_TOLERANCE * abs(truth) if math.isfinite(truth) else 0.0)


def report(message: str, answer: Answer) -> ConformanceError:
    """The counterexample: the problem, the answer, and a better schedule if one is known."""
    lines = [message, "", f"problem = {problem_code(answer.problem)}", ""]
    if isinstance(answer.raw, Solution):
        raw = answer.raw
        lines.append(f"answer: {raw.status}, cost {raw.cost!r}, bound {raw.bound!r}, peak {raw.peak}")
        if raw.timeline is not None:
            lines.append(f"schedule = {schedule_code(raw.timeline.schedule)}")
    truth = truth_about(answer.problem)
    if truth.schedule is not None:
        name = "optimum" if truth.exact else "known"
        said = f"the optimum is {truth.cost!r}" if truth.exact else f"a schedule costs {truth.cost!r}"
        lines += [f"truth: {said}", f"{name} = {schedule_code(truth.schedule)}"]
    elif truth.exact:
        lines.append("truth: no schedule is within the budget")
    return ConformanceError("\n".join(lines))


def _invalid(answer: Answer) -> str | None:
    return answer.invalid and f"the judge rejects the schedule: {answer.invalid}"


def _over_budget(answer: Answer) -> str | None:
    judged, budget = answer.judged, answer.problem.budget
    if judged is None or judged.peak <= budget:
        return None
    return f"the peak is {judged.peak} bytes, over the budget of {budget}"


def _out_of_order(answer: Answer) -> str | None:
    if answer.keeps_order:
        return None
    return "the first runs do not keep the base order, although the problem fixes it"


def _misreported(answer: Answer) -> str | None:
    judged, solution = answer.judged, answer.solution
    if judged is None:
        return None
    if (
        solution.peak != judged.peak
        or exceeds(solution.cost, judged.cost)
        or exceeds(judged.cost, solution.cost)
    ):
        return (
            f"the answer says cost {solution.cost!r} and peak {solution.peak}, "
            f"the judge says cost {judged.cost!r} and peak {judged.peak}"
        )
    truth = truth_about(answer.problem)
    if truth.exact and exceeds(truth.cost, answer.cost):
        return "the schedule is cheaper than the optimum: a bug of the judge or the oracle, please report it"
    return None


def _false_optimum(answer: Answer) -> str | None:
    if answer.solution.status is not Status.OPTIMAL or not math.isfinite(answer.cost):
        return None
    known = truth_about(answer.problem).cost
    if exceeds(answer.cost, known):
        return f"claims an optimum of {answer.cost!r}, but {known!r} is enough"
    return None


def _false_infeasibility(answer: Answer) -> str | None:
    if answer.solution.status is not Status.INFEASIBLE or math.isinf(truth_about(answer.problem).cost):
        return None
    return "claims that no schedule is within the budget, but there is one"


def _false_bound(answer: Answer) -> str | None:
    solution = answer.solution
    if solution.status not in (Status.FEASIBLE, Status.UNKNOWN):
        return None
    known = truth_about(answer.problem).cost
    if not exceeds(float(solution.bound), known):
        return None
    return f"claims that no schedule costs less than {solution.bound!r}, but one costs {known!r}"


LAWS: Mapping[str, Callable[[Answer], str | None]] = {
    "valid": _invalid,
    "within_budget": _over_budget,
    "fixed_order": _out_of_order,
    "reports": _misreported,
    "optimal": _false_optimum,
    "infeasible": _false_infeasibility,
    "bound": _false_bound,
}
"""The laws that a single answer can break, each with the function that finds the fault."""

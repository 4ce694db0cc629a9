"""From a claim to a solution: the judge replays the schedule, and the rest of the claim must agree with it.

Answers of solvers, of the cache and of other processes pass through here before users see them.
"""

from __future__ import annotations

import math

from checkmate.analysis import floor
from checkmate.errors import InvalidScheduleError, SolverError
from checkmate.files.claim import Claim
from checkmate.heuristics.best import FirstFit
from checkmate.plugins.loader import one_line
from checkmate.problem.problem import Problem
from checkmate.problem.solution import Solution, Status

__all__ = ["claimed", "judged"]


def claimed(answer: object, name: str, problem: Problem) -> Claim:
    """The claim in a solver's answer, checked to be about this problem.

    Raises:
        SolverError: if ``answer`` is not a Solution, or answers another problem; names the solver.
    """
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
    if narrower:  # a proof about fewer schedules need not hold for more
        raise SolverError(
            f"solver {name!r} answered about a budget of {about.budget} bytes with fixed_order="
            f"{about.fixed_order}, not {problem.budget} with {problem.fixed_order}: "
            "make the Solution with the given problem"
        )
    return claim


def judged(claim: Claim, name: str, problem: Problem) -> Solution:
    """Replay the schedule of a solver's claim on the graph of the problem, and check the rest of the claim.

    Peak, cost and status of the solution come from the judge, not from the claim.

    Raises:
        SolverError: if the schedule is invalid or the claim contradicts it; names the solver.
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

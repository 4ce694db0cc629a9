"""MOCCASIN: the model of retention intervals, solved by CP-SAT from a schedule that eviction found.

Bartan, Li, Teague, Lott and Dilkina, "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML
2023; :mod:`checkmate_solvers.literature.retention.model` has the constraints. The model covers few of all
schedules: base order, each op at most once in a stage, and C times in all. So CP-SAT's own bound proves
nothing about the problem, and neither does "no solution": neither is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from checkmate import Problem, Solution
from checkmate.heuristics import StaticEviction
from checkmate_solvers.engines.scip import require_ortools
from checkmate_solvers.literature.retention.model import Grid, Model
from checkmate_solvers.literature.stages.shape import NEEDED, Needed
from checkmate_solvers.search import Incumbent, answer_easy_cases, offer

__all__ = ["RetentionIntervals"]

_NAME = "retention-intervals"
_STARTING = 0.2
"""Share of the time that eviction may take."""
_MOST_EVENTS = 2_000_000
_EVENTS_PER_S = 100_000
_MOST_SEED = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionIntervals:
    """CP-SAT over retention intervals; the schedule that it starts from can be the answer.

    Attributes:
        copies: C, how many times an op may run. With 1 nothing is recomputed.
        warm_start: begin with a schedule of eviction; False = from nothing, as in the paper.

    Raises:
        MissingDistributionError: if OR-Tools is not installed.
        ValueError: if ``copies`` is less than 1.
    """

    copies: int = 2
    warm_start: bool = True

    def __post_init__(self) -> None:
        """Reject less than one run, and check for OR-Tools."""
        require_ortools()
        if self.copies < 1:
            raise ValueError(f"copies is {self.copies}, must be ≥ 1: an op runs at least once")

    def solve(self, problem: Problem) -> Solution:
        """The best schedule found; unknown if there is none, or the graph too large for the time."""
        best = Incumbent(problem)
        if answer_easy_cases(best):
            return best.solution()
        if self.warm_start:
            fixed = replace(
                problem, fixed_order=True, time_limit=_STARTING * problem.time_limit, on_progress=None
            )
            started = StaticEviction().solve(fixed)
            if started.schedule is not None:
                offer(best, started.schedule.sequence.tolist(), "eviction")
        if not best.clock.has_time_to_judge(NEEDED):
            return best.solution()
        needed = Needed(problem.graph, problem.budget)
        grid = Grid(graph=needed.graph, room=needed.room)
        if not best.done and grid.end <= min(_MOST_EVENTS, _EVENTS_PER_S * problem.time_limit):
            self._improve(best, needed, Model(grid, self.copies))
        return best.solution()

    def _improve(self, best: Incumbent, needed: Needed, model: Model) -> None:
        """Keep each solution as it comes, and offer the last one again, to be pruned."""
        from ortools.sat.python import cp_model

        if best.sequence is not None:
            place = {v: i for i, v in enumerate(needed.ops)}
            model.start_from([place[v] for v in best.sequence])
        found: list[int] = []

        class Offer(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                found[:] = (needed.ops[v] for v in model.sequence(self.value))
                best.keep_if_better(found, _NAME)

        if best.clock.left_s <= 0:
            return
        solver = cp_model.CpSolver()
        settings, problem = solver.parameters, best.problem
        settings.max_time_in_seconds = best.clock.left_s
        settings.num_workers = problem.threads
        settings.interleave_search = problem.threads > 1  # deterministic
        settings.random_seed = problem.seed % _MOST_SEED
        status = solver.solve(model.cp, Offer())
        exact = not len(problem.graph.reuses.indices)
        if exact and status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
            best.note(f"{_NAME}: all schedules searched in which no op runs more than {self.copies} times")
        if found:
            offer(best, found, _NAME)

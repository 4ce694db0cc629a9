"""The MILP of the Checkmate paper: n² decisions, what to compute and to retain in every stage.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, section
4; :mod:`checkmate_solvers.literature.stages` has the rows. The MILP is exact *in its space*: ops in base
order within a stage, each at most once, the first runs in base order. Cheaper schedules may exist outside, so
its own bound proves nothing about the problem. The reported bound is that of the cut MILP.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from checkmate import Problem, Solution
from checkmate.errors import PlanError
from checkmate_solvers.engines import Highs
from checkmate_solvers.literature.stages import NEEDED_COST, Needed, PaperProgram, Shape
from checkmate_solvers.milp import Backend
from checkmate_solvers.moments.cut_milp import CutMilp
from checkmate_solvers.search import Incumbent, answer_easy_cases, keep

__all__ = ["CheckmateMilp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckmateMilp:
    """The paper's MILP, as it is or strengthened.

    Attributes:
        partitioned: frontier-advancing stages (the paper's section 4.6); False = its first formulation, in
            which any stage may compute anything: hopeless beyond a few ops, for comparison only. Problems
            with a fixed order are always partitioned.
        strengthened: add rows that cut off only fractional solutions.
        proof: first look for a bound that holds for all schedules.
        gap: stop at this gap, relative to the cost of the whole schedule.
        backend: solves the programs.
    """

    partitioned: bool = True
    strengthened: bool = True
    proof: bool = True
    gap: float = 1e-4
    backend: Backend = field(default_factory=Highs)

    def solve(self, problem: Problem) -> Solution:
        """The best schedule of the paper's space; unknown if there is none, or the time is too short."""
        best = Incumbent(problem)
        if not answer_easy_cases(best) and best.clock.has_time_for(NEEDED_COST):
            self._improve(best, Needed(problem.graph, problem.budget))
        return best.solution()

    def _improve(self, best: Incumbent, needed: Needed, *, roundup: bool = False) -> None:
        """Keep the best stage plan; if rounded bytes made it too large, the best with bytes rounded up."""
        partitioned = self.partitioned or best.problem.fixed_order
        shape = Shape(graph=needed.graph, room=needed.room, partitioned=partitioned, roundup=roundup)
        if not shape.fits_in(best.problem.time_limit):
            return
        if self.proof and not roundup:
            CutMilp().bound(best)
        if best.done:
            return
        model = PaperProgram(shape, strengthened=self.strengthened)
        gap = best.recompute_gap(self.gap) if partitioned else self.gap
        outcome = self.backend.solve(model.program, time_limit=best.clock.left_s, gap=gap)
        if outcome.values is None:
            return
        origin = "checkmate-milp" + ", best in its stages" * (outcome.finished and shape.exact)
        try:
            sequence = needed.sequence(model.plan(outcome.values))
        except PlanError:  # whole only within the engine's tolerance
            return
        if not keep(best, sequence, origin) and not shape.exact and not roundup:
            self._improve(best, needed, roundup=True)

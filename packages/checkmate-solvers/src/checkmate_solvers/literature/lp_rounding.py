"""Two-phase rounding: S from the linear relaxation of the paper's MILP, then the least R for it.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, section
5. The relaxation gives S* between 0 and 1. Rounded, it is a choice of what to retain, from which the computes
follow (:meth:`checkmate.Plan.from_retained`). Rounding ignores the budget, so the relaxation is also solved
with 1 − ε of the room. There are three ways to round, the first and the last from the paper:

- S = 1 where S* > 1/2;
- the same with other thresholds;
- S = 1 with probability S*.

Where stage plans do not fit, the paper has no schedule. Here they are repaired: the tensors that the plan
keeps at a few moments are kept as far as the budget allows (:func:`checkmate_solvers.search.apply`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from checkmate import Plan, Problem, Solution
from checkmate_solvers.engines import Highs
from checkmate_solvers.literature.stages import NEEDED_COST, Needed, PaperProgram, Shape
from checkmate_solvers.milp import Backend
from checkmate_solvers.moments.cut_milp import CutMilp
from checkmate_solvers.moments.moment import Mask, crowded_ops
from checkmate_solvers.search import Incumbent, answer_easy_cases, apply, keep

__all__ = ["LpRounding"]

_MOMENTS = 5
"""Moments, at most, whose kept tensors a repair starts from."""
_DIGITS = 6
"""S* is rounded to this many decimals, lest an engine's rounding errors decide near a threshold."""
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LpRounding:
    """Round the linear relaxation in several ways, with several ε, and take the cheapest schedule that fits.

    Attributes:
        margins: ε, in the order in which they are tried.
        thresholds: how many thresholds between 0 and 1 are tried beside 1/2.
        samples: how many random roundings are tried.
        repair: repair stage plans that do not fit; False = as in the paper.
        strengthened: relax the strengthened MILP; False = the paper's.
        backend: solves the relaxations.
    """

    margins: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)
    thresholds: int = 9
    samples: int = 10
    repair: bool = True
    strengthened: bool = True
    backend: Backend = field(default_factory=Highs)

    def solve(self, problem: Problem) -> Solution:
        """The best of all roundings; unknown if none fits, or the time is too short."""
        best = Incumbent(problem)
        if answer_easy_cases(best) or not best.clock.has_time_for(NEEDED_COST):
            return best.solution()
        needed = Needed(problem.graph, problem.budget)
        if Shape(graph=needed.graph, room=needed.room).fits_in(problem.time_limit):
            CutMilp().bound(best)
            random = np.random.default_rng(problem.seed)
            for margin in self.margins:
                shape = Shape(graph=needed.graph, room=int(needed.room * (1 - margin)))
                if best.done or not self._improve(best, needed, shape, random):
                    break
        return best.solution()

    def _improve(self, best: Incumbent, needed: Needed, shape: Shape, random: np.random.Generator) -> bool:
        """Relax, round, and keep what fits; False if the relaxation has no solution."""
        model = PaperProgram(shape, strengthened=self.strengthened)
        outcome = self.backend.solve(model.program.relaxed(), time_limit=best.clock.left_s, gap=0.0)
        if outcome.values is None:
            return False
        relaxed = model.retained(outcome.values)[: shape.graph.n_ops].round(_DIGITS)
        tried: set[bytes] = set()
        fits = False
        for how, kept in self._rounded(relaxed, random):
            if best.clock.left_s <= 0:
                break
            retain = _retained(shape, kept)
            if retain.tobytes() not in tried:
                tried.add(retain.tobytes())
                sequence = needed.sequence(Plan.from_retained(shape.graph, retain))
                fits |= keep(best, sequence, f"lp-rounding, {how}")
        if self.repair and not fits and not best.done:
            retain = _retained(shape, relaxed > 0.5)
            ops = crowded_ops(best.problem, _MOMENTS)
            kept = np.ones((len(ops), best.problem.graph.n_tensors), dtype=np.bool_)
            kept[:, needed.tensors] = retain[np.searchsorted(needed.ops, ops)]
            apply(best, dict(zip(ops, kept, strict=True)), "lp-rounding")
        return True

    def _rounded(self, relaxed: _Floats, random: np.random.Generator) -> Iterator[tuple[str, Mask]]:
        yield "threshold 1/2", relaxed > 0.5
        for threshold in np.linspace(0, 1, self.thresholds + 2)[1:-1]:
            yield "another threshold", relaxed > threshold.round(_DIGITS)
        for _ in range(self.samples):
            yield "at random", random.random(relaxed.shape) < relaxed


def _retained(shape: Shape, kept: Mask) -> Mask:
    """S for all tensors of the graph; outputs of ops that run once only are always kept."""
    graph = shape.graph
    retain = np.zeros((graph.n_ops, graph.n_tensors), dtype=np.bool_)
    retain[:, shape.kept] = kept
    for v, op in enumerate(graph.ops):
        if not op.recomputable:
            retain[v + 1 :, list(op.outputs)] = True
    return retain

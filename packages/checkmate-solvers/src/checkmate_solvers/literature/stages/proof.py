"""A bound that holds for all schedules of the problem, for methods whose own bound holds in their space only.

The cut MILP proves it, on an incumbent of its own: its schedules are not of the published method.
"""

from __future__ import annotations

from dataclasses import replace

from checkmate_solvers.moments.cut_milp import CutMilp
from checkmate_solvers.moments.min_cut import MinCut
from checkmate_solvers.search import Incumbent

__all__ = ["prove"]

_SHARE = 0.4
"""Share of the remaining time."""


def prove(best: Incumbent) -> None:
    """Raise the bound."""
    if not best.done:
        limit = _SHARE * best.clock.left_s
        other = Incumbent(replace(best.problem, time_limit=limit, on_progress=None))
        CutMilp().improve(other, hills=MinCut(plans=0).improve(other))
        best.raise_bound(other.bound, "cut-milp")

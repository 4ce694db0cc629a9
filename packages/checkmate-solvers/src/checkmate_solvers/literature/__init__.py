"""Published methods of others, as in their papers, to compare with ours."""

from checkmate_solvers.literature.checkmate_milp import CheckmateMilp
from checkmate_solvers.literature.lp_rounding import LpRounding
from checkmate_solvers.literature.retention_intervals import RetentionIntervals

__all__ = ["CheckmateMilp", "LpRounding", "RetentionIntervals"]

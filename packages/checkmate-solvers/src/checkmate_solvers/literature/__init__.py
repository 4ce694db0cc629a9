"""Methods that others have published, as their papers have them, to compare with ours."""

from checkmate_solvers.literature.retention.solver import RetentionIntervals
from checkmate_solvers.literature.stages.checkmate_milp import CheckmateMilp
from checkmate_solvers.literature.stages.lp_rounding import LpRounding

__all__ = ["CheckmateMilp", "LpRounding", "RetentionIntervals"]

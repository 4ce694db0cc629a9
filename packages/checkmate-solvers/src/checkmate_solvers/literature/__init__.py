"""Methods that others have published, as their papers have them, to compare with ours."""

from checkmate_solvers.literature.retention import RetentionIntervals
from checkmate_solvers.literature.stages import CheckmateMilp, LpRounding

__all__ = ["CheckmateMilp", "LpRounding", "RetentionIntervals"]

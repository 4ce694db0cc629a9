"""Programs in stages: what each stage computes (R), and what is retained into it (S)."""

from checkmate_solvers.literature.stages.checkmate_milp import CheckmateMilp
from checkmate_solvers.literature.stages.lp_rounding import LpRounding

__all__ = ["CheckmateMilp", "LpRounding"]

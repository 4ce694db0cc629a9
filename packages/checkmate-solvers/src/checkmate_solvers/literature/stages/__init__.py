"""Programs in stages, over two matrices: R, the computes of a stage; S, the tensors retained into it."""

from checkmate_solvers.literature.stages.checkmate_milp import CheckmateMilp
from checkmate_solvers.literature.stages.lp_rounding import LpRounding

__all__ = ["CheckmateMilp", "LpRounding"]

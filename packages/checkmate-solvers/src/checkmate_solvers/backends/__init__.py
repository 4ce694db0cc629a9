"""Engines that solve mixed-integer programs; each is a :class:`checkmate_solvers.program.Backend`."""

from checkmate_solvers.backends.highs import Highs
from checkmate_solvers.backends.scip import Scip

__all__ = ["Highs", "Scip"]

"""Engines that solve mixed-integer programs; each is a :class:`checkmate_solvers.engines.program.Backend`."""

from checkmate_solvers.engines.highs import Highs
from checkmate_solvers.engines.scip import Scip

__all__ = ["Highs", "Scip"]

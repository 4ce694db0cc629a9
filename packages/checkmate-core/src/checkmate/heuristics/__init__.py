"""Published rules and simple ones: quick schedules without a proof.

Each is a solver, a frozen value whose fields are its settings::

    checkmate.solve(graph, "60%", solver=ChenSqrtN(segment=8))
"""

from __future__ import annotations

from checkmate.heuristics.best import BestHeuristic
from checkmate.heuristics.checkpoint_last import CheckpointLast
from checkmate.heuristics.chen import ChenGreedy, ChenSqrtN
from checkmate.heuristics.eviction import StaticEviction
from checkmate.heuristics.first_fit import FirstFit
from checkmate.heuristics.keep_all import KeepAll
from checkmate.heuristics.plain_order import PlainOrder

__all__ = [
    "BestHeuristic",
    "CheckpointLast",
    "ChenGreedy",
    "ChenSqrtN",
    "FirstFit",
    "KeepAll",
    "PlainOrder",
    "StaticEviction",
]

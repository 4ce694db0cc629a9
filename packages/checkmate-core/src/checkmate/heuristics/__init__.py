"""Heuristics, published and simple: quick schedules without a proof.

Each class is a solver, a frozen value whose fields are its settings::

    checkmate.solve(graph, "60%", solver=ChenSqrtN(segment=8))

Authors of solvers find the parts here as well: :func:`evicting_sequence` runs the base order within a budget,
:func:`pruned` removes recomputations that the budget has room to avoid, :func:`cheapest` picks among
candidate sequences.
"""

from __future__ import annotations

from checkmate.heuristics.best import BestHeuristic, FirstFit
from checkmate.heuristics.chen import ChenGreedy, ChenSqrtN
from checkmate.heuristics.eviction import StaticEviction
from checkmate.heuristics.paging import Weights, evicting_sequence
from checkmate.heuristics.prune import pruned
from checkmate.heuristics.simple import CheckpointLast, KeepAll, PlainOrder, cheapest

__all__ = [
    "BestHeuristic",
    "CheckpointLast",
    "ChenGreedy",
    "ChenSqrtN",
    "FirstFit",
    "KeepAll",
    "PlainOrder",
    "StaticEviction",
    "Weights",
    "cheapest",
    "evicting_sequence",
    "pruned",
]

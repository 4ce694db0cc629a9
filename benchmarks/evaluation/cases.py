"""Generated graphs for the solver benchmark, with their budgets as shares of the peak without recomputation.

Six training steps of 17 to 3,187 ops, others that single experiments use, and random layered graphs of the
kinds RL1 and RL2. These have the published number of ops but come from our own generator. Of its first dozen
seeds we took those whose floors are nearest to the published floors, 43 % and 60 % of the peak without
recomputation: the distance from the floor decides how hard a budget is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checkmate import DFGraph, generators

__all__ = ["GENERATED", "SHARES"]

_STEP = (0.7, 0.5, 0.3)
_LAYERED = (0.9, 0.8, 0.7)

GENERATED: Mapping[str, Callable[[], DFGraph]] = {
    "chain8": lambda: generators.chain(8),
    "chain32-random": lambda: generators.chain(32, cost="random", seed=1),
    "chain64": lambda: generators.chain(64),
    "unet4": lambda: generators.unet(4),
    "layered60-training": lambda: generators.random_layered(60, seed=1, training=True),
    "residual16": lambda: generators.residual(16),
    "transformer12": lambda: generators.transformer(12, vocabulary=8_000),
    "residual64": lambda: generators.residual(64),
    "transformer42": lambda: generators.transformer(42),
    "transformer106": lambda: generators.transformer(106),
    "rl1": lambda: generators.random_layered(100, seed=5),
    "rl2": lambda: generators.random_layered(250, seed=7),
}
"""By name, from small to large."""

SHARES: Mapping[str, tuple[float, ...]] = {
    "chain8": _STEP,
    "chain64": _STEP,
    "unet4": (0.7, 0.5, 0.4),
    "residual16": _STEP,
    "transformer12": _STEP,
    "transformer42": _STEP,
    "transformer106": _STEP,
    "rl1": _LAYERED,
    "rl2": _LAYERED,
}
"""Graphs of the solver benchmark, and the budgets for each."""

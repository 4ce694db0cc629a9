"""Published figures of other systems: extra cost in percent of computing every op once, and seconds.

Budgets are shares of the peak of the graph's own order. The published random layered graphs are not ours:
figures can be compared between kinds of graphs, not between single graphs.

Sources:
    Checkmate: Jain et al., MLSys 2020, arXiv:1910.02653. Gurobi, 24 cores.
    MOCCASIN: Bartan et al., ICML 2023, arXiv:2304.14463. CP-SAT; keeps the order of the graph.
    FastSA: Imanishi et al., "A fast heuristic to optimize time-space tradeoff for large models",
        NeurIPS 2023. One core; may reorder; no bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["KINDS", "LAYERED", "RATIOS", "Published"]


class Published(NamedTuple):
    """Extra cost in percent, and the time as a text."""

    percent: float
    took: str


LAYERED: Mapping[str, Mapping[tuple[str, float], Published]] = {
    "FastSA": {
        ("RL1", 0.9): Published(0.0, "12 s"),
        ("RL1", 0.8): Published(0.3, "12 s"),
        ("RL1", 0.7): Published(2.2, "12 s"),
        ("RL2", 0.9): Published(0.0, "15 s"),
        ("RL2", 0.8): Published(0.0, "15 s"),
        ("RL2", 0.7): Published(2.6, "15 s"),
    },
    "MOCCASIN": {
        ("RL1", 0.9): Published(0.8, "9 s"),
        ("RL1", 0.8): Published(2.3, "9 s"),
        ("RL2", 0.9): Published(0.9, "55–640 s"),
        ("RL2", 0.8): Published(4.9, "55–640 s"),
    },
}
"""By system, kind and share."""
KINDS: Mapping[str, str] = {"rl1": "RL1", "rl2": "RL2", "rl100": "RL1", "rl250": "RL2"}
"""Names of graphs, ours and common ones, and their kind."""
RATIOS: Mapping[str, tuple[str, str]] = {
    "chen-sqrt-n-ap": ("AP √n", "1.14–1.54"),
    "chen-greedy-ap": ("AP greedy", "1.06–1.39"),
    "revolve": ("Griewank log n", "1.44–7.07"),
    "lp-rounding": ("two-phase LP rounding", "1.00–1.06"),
}
"""By our name of the solver: the Checkmate paper's name, and its cost / optimum (table 2)."""

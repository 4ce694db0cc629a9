"""The chain that many tests share."""

from __future__ import annotations

from checkmate import DFGraph

CHAIN = DFGraph.from_nodes(
    cost=[1] * 8,
    size=[8] * 8,
    deps=[[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]],
    backward=[False] * 4 + [True] * 4,
    name="chain",
    cost_unit="s",
)
"""Four forward and four backward ops of 8 bytes each: peak 40 bytes without recomputation, at least 24."""

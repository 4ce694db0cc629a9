r"""The least peak: from keeping everything downwards, each sequence the start of the next.

With P the peak so far and F the floor of the graph, the next budget is P − s (P − F). The sequence is
repaired under it by machine code (see :mod:`checkmate_solvers.machine.drops`), with as many steps as the
*effort* allows; a few rounds of local search then take away what has become needless. Success makes s larger
and the effort less, failure the contrary: what fails first is mostly that too much was asked for at once, and
to find that out should cost little.

A target only says where to stop, and changes no step: a peak that was reached once is reached again.
"""

from __future__ import annotations

import numpy as np

from checkmate import DFGraph, floor
from checkmate.analysis import liveness, needed_ops
from checkmate.solving import NEVER, Deadline
from checkmate_solvers.machine.arrays import ANY_BUDGET, BEST_LENGTH, TEMPERATURE, Ints, state_of
from checkmate_solvers.machine.code import machine_code

__all__ = ["tightened"]

_NOTHING = np.zeros(0, dtype=np.int64)
_PIECE = 500
"""Steps between two looks at the clock."""
_SAMPLES = 4
_ATTEMPTS = 5
"""Each starts again, with other choices."""
_STEP, _LARGEST_STEP, _LEAST_STEP = 0.25, 0.5, 1e-3
"""Of the way from the peak to the floor."""
_LONGER, _SHORTER = 1.3, 0.5
"""What the step is multiplied by after success, and after failure."""
_EFFORT, _MOST_EFFORT, _HARDER = 0.2, 20.0, 1.5
"""Steps of a repair for each compute of the sequence, at first and in the end; their growth by a failure."""
_ROUNDS, _HEAT = 100, 0.1
"""Rounds of local search after each success, and their temperature relative to the mean cost."""


def tightened(
    graph: DFGraph, target: int, *, fixed_order: bool, seed: int = 0, deadline: Deadline = NEVER
) -> list[int]:
    """The needed ops with repeats, in an order whose peak is as low as was found.

    Args:
        graph: the graph.
        target: bytes; good enough, and no less is asked for.
        fixed_order: first runs of needed ops stay where they are.
        seed: of every choice that is left to chance.
        deadline: stop when it has passed.

    >>> graph = DFGraph.from_nodes(cost=[1] * 4, size=[2, 4, 1, 1], deps=[[], [0], [1], [0, 2]])
    >>> tightened(graph, 0, fixed_order=False)
    [0, 1, 2, 0, 3]
    """
    lowest = max(target, floor(graph).size)
    best: Ints = np.flatnonzero(needed_ops(graph)).astype(np.int64)
    peak = liveness(graph, best.tolist()).peak
    for attempt in range(_ATTEMPTS):
        if peak > lowest and not deadline.passed:
            descent = _Descent(graph, fixed_order=fixed_order, seed=seed + attempt)
            descent.run(lowest, deadline)
            if descent.peak < peak:
                best, peak = descent.best, descent.peak
    ops: list[int] = best.tolist()
    return ops


class _Descent:
    """One attempt; ``best`` and ``peak`` are how far it came."""

    def __init__(self, graph: DFGraph, *, fixed_order: bool, seed: int) -> None:
        self.graph = graph
        self.best: Ints = np.flatnonzero(needed_ops(graph)).astype(np.int64)
        self.peak = liveness(graph, self.best.tolist()).peak
        self.state = state_of(graph, fixed_order=fixed_order, seed=seed)
        self.heat = _HEAT * float(graph.costs.mean()) if graph.n_ops else 0.0

    def run(self, lowest: int, deadline: Deadline) -> None:
        """Descend until nothing helps any more."""
        end, step, effort = floor(self.graph).size, _STEP, _EFFORT
        while self.peak > lowest and effort < _MOST_EFFORT and not deadline.passed:
            budget = max(end, min(self.peak - 1, int(self.peak - step * (self.peak - end))))
            if self._fits(budget - self.graph.base_size, effort, deadline):
                step, effort = min(_LARGEST_STEP, step * _LONGER), max(_EFFORT, effort / _HARDER)
            else:
                step, effort = max(_LEAST_STEP, step * _SHORTER), effort * _HARDER

    def _fits(self, room: int, effort: float, deadline: Deadline) -> bool:
        """Whether the best so far could be repaired under a budget; then what became of it is the best."""
        state, work = self.state, machine_code()
        work(state, self.best, ANY_BUDGET, 0, 0, 1.0, 1)
        fits, steps = False, int(effort * len(self.best)) + _PIECE // 5
        while not fits and steps > 0 and not deadline.passed:
            fits, _ = work(state, _NOTHING, room, min(steps, _PIECE), 0, 1.0, _SAMPLES)
            steps -= _PIECE
        if fits:
            state.totals[TEMPERATURE] = self.heat
            work(state, _NOTHING, room, 0, _ROUNDS, 1.0, _SAMPLES)
            self.best = state.best[: state.counts[BEST_LENGTH]].copy()
            self.peak = liveness(self.graph, self.best.tolist()).peak
        return fits

"""Revolve: binomial checkpointing of a chain in closed form.

With c slots for states, the input included, and every step computed at most r times, β(c, r) = C(c + r, c) is
the longest chain that can be reversed. A chain of l steps with β(c, r − 1) < l ≤ β(c, r) needs

    t(l, c) = r l − β(c + 1, r − 1)

forward steps, and no schedule of checkpoints needs fewer. One that attains it stores a checkpoint after
k = min(β(c, r − 1), l − β(c − 1, r − 1)) steps, reverses the steps behind it with the c − 1 slots that are
left, frees it, and reverses the first k steps with all c.

Source: Griewank and Walther, "Algorithm 799: revolve: an implementation of checkpointing for the reverse or
adjoint mode of computational differentiation", ACM TOMS 26 (1), 2000; Griewank, "Achieving logarithmic growth
of temporal and spatial complexity in reverse automatic differentiation", 1992. They count steps of one cost
and states of one size; l is here p + 1, as the turn of a chain is a step that is reversed without being run.
The choice of k among equally good ones is ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkmate import Problem, Solution
from checkmate.analysis import liveness
from checkmate.solving import Deadline
from checkmate_solvers.chains.structure import Chain, solve_chain

__all__ = ["Revolve", "binomial_sequence", "forward_steps"]

_MOST_OPS = 2_000_000
"""Ops of a sequence that is built, at most: with few slots they grow with the square of the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revolve:
    """Binomial checkpointing in closed form, with the most slots that the budget has room for.

    On a chain of unequal layers slots count as if they were equal, and the simulator decides what fits. On a
    graph that is no chain the answer is unknown, unless the base order fits as it is.

    Attributes:
        slots: c, the input's included; None tries every number, the largest first, until one fits.

    >>> from checkmate.generators import chain
    >>> Revolve().solve(Problem(graph=chain(8), budget=4)).cost
    26.0
    """

    slots: int | None = None

    def __post_init__(self) -> None:
        if self.slots is not None and self.slots < 1:
            raise ValueError(f"slots is {self.slots}, must be ≥ 1: the first holds the input of the chain")

    def solve(self, problem: Problem) -> Solution:
        """Find the schedule with the most slots that fits."""
        return solve_chain(problem, self._schedules)

    def _schedules(self, problem: Problem, chain: Chain) -> Iterator[Sequence[int]]:
        if self.slots is not None:
            yield binomial_sequence(chain, self.slots)
            return
        deadline = Deadline(problem.time_limit)
        low, high = 1, chain.length + 1  # halve: the peak grows with the slots, or nearly so
        while low < high and not deadline.passed:
            slots = (low + high + 1) // 2
            if forward_steps(chain.length + 1, slots) > _MOST_OPS:
                low = slots
                continue
            sequence = binomial_sequence(chain, slots)
            if liveness(problem.graph, sequence).peak <= problem.budget:
                low = slots
                yield sequence
            else:
                high = slots - 1
        if forward_steps(chain.length + 1, low) <= _MOST_OPS:
            yield binomial_sequence(chain, low)


def forward_steps(length: int, slots: int) -> int:
    """t(l, c): the least forward steps that reverse ``length`` steps with ``slots`` slots.

    >>> [forward_steps(9, c) for c in range(1, 9)]
    [36, 17, 13, 12, 11, 10, 9, 8]
    """
    r = _repetitions(length, slots)
    return r * length - _beta(slots + 1, r - 1)


def binomial_sequence(chain: Chain, slots: int) -> list[int]:
    """The ops of the binomial schedule, in order, for :meth:`checkmate.Schedule.from_sequence`.

    If the backward ops of a layer read its outputs, and not only its input, the layer runs just before them.
    """
    sequence: list[int] = []
    stack = [(0, chain.length + 1, slots)]
    makes = [*(set(chain.graph.ops[v].outputs) for v in chain.forward), set[int]()]
    saves = [
        any(made.intersection(chain.graph.ops[v].inputs) for v in block)
        for made, block in zip(makes, chain.blocks, strict=True)
    ]
    while stack:
        start, stop, c = stack.pop()
        if stop - start == 1 or c == 1:
            for q in range(stop, start, -1):
                sequence += chain.forward[start : q - 1]
                sequence += (*chain.forward[q - 1 : q * saves[q - 1]], *chain.blocks[q - 1])
            continue
        r = _repetitions(stop - start, c)
        middle = start + min(_beta(c, r - 1), stop - start - _beta(c - 1, r - 1))
        sequence += chain.forward[start:middle]
        stack += [(start, middle, c), (middle, stop, c - 1)]
    return sequence


def _beta(c: int, r: int) -> int:
    return math.comb(c + r, c) if r >= 0 else 0


def _repetitions(length: int, slots: int) -> int:
    """The least r with β(c, r) ≥ l."""
    return next(r for r in itertools.count() if _beta(slots, r) >= length)

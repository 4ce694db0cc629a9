"""Chen et al. 2016, "Training deep nets with sublinear memory cost": keep the outputs of some forward ops.

The forward pass is cut into segments. The outputs of the last op of a segment are kept; all others are
dropped, and recomputed when the backward pass needs them.

*Published.* Two rules for the cuts:

- √n, for a chain of n layers: every k-th op, k = √n. O(√n) memory for at most one more forward pass.
- Greedy (algorithm 3, for layers of unequal size): walk through the ops and add up the bytes that they make;
  at the first candidate at which the sum exceeds b, cut, and start again from zero. b is searched.

And two sets of candidates for cuts (Jain et al. 2020, section 6), for graphs other than chains:

- *linearized*: all forward ops, in base order, as if they were a chain;
- *articulation*: the articulation points of the forward pass (:mod:`checkmate.analysis.articulation`).

*Ours.* An op with several outputs keeps them all. The two ends of the forward pass are candidates too: the
batch and the loss lie outside of it. Dropped tensors are recomputed one by one when they are read, not by
whole segments. Each choice of cuts is tried in three versions: (1) the last segment is kept, as it is read at
once; (2) it is dropped, as published; (3) it is kept, and tensors that skip connections recompute before the
turn of their segment are dropped once more when the backward pass enters an earlier segment. k and b are
swept, and the cheapest schedule within the budget is returned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from checkmate.analysis import articulation_points
from checkmate.heuristics.simple import cheapest
from checkmate.model.graph import DFGraph
from checkmate.model.lower import chunks_from_moments
from checkmate.problem.deadline import Deadline
from checkmate.problem.problem import Problem, judging_s
from checkmate.problem.solution import Solution

__all__ = ["Candidates", "ChenGreedy", "ChenSqrtN"]

Candidates = Literal["linearized", "articulation"]

_SWEEP = 32
"""Largest number of segment lengths, or thresholds, that a sweep tries."""
_LONGEST = 3
"""Without a sweep, schedules with more computes per op than this are skipped: judging them is slow."""
_LOOK = 4096
"""Number of computes between two looks at the clock: smaller graphs always get one schedule."""
_MOST_MOMENTS = 256
"""Schedules with more moments than this are skipped: each moment costs a pass over the graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChenSqrtN:
    """Cut at every k-th candidate; the module separates the published part from ours.

    A graph without backward ops is computed once, in base order.

    Attributes:
        candidates: the possible cuts, ``"linearized"`` or ``"articulation"``.
        segment: k; None tries ⌈√(number of candidates)⌉ first and then up to 32 lengths.
        sweep: False = without ``segment``, try only that length and the next, one of which is out of step
            with equal blocks, and return the first schedule that fits.

    >>> deps = [[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]]
    >>> chain = DFGraph.from_nodes(cost=[1] * 8, size=[8] * 8, deps=deps, backward=[False] * 4 + [True] * 4)
    >>> ChenSqrtN().solve(Problem(graph=chain, budget=32)).cost
    9.0
    """

    candidates: Candidates = "linearized"
    segment: int | None = None
    sweep: bool = True

    def __post_init__(self) -> None:
        if self.segment is not None and self.segment < 1:
            raise ValueError(f"segment is {self.segment}, must be ≥ 1 candidate")

    def solve(self, problem: Problem) -> Solution:
        """The cheapest schedule within the budget, of the segment lengths tried in time."""
        deadline = Deadline(problem.time_limit, patient=not self.sweep)
        graph, turn = problem.graph, _turn(problem.graph)
        places = _places(graph, self.candidates, turn)
        root = max(math.ceil(math.sqrt(len(places))), 1)
        more = _sweep(1, len(places)) if self.sweep else [root + 1]
        lengths = [root, *more] if self.segment is None else [self.segment]
        cuts = (places[k - 1 :: k] for k in lengths)
        longest = math.inf if self.sweep else _LONGEST * graph.n_ops
        return cheapest(problem, _sequences(graph, turn, cuts, deadline, longest), first=not self.sweep)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChenGreedy:
    """Cut at the first candidate at which a segment exceeds b bytes; the module describes the rule.

    A graph without backward ops is computed once, in base order.

    Attributes:
        candidates: the possible cuts, ``"linearized"`` or ``"articulation"``.
        threshold: b, in bytes; None tries 0, and up to 32 values from a candidate's mean bytes to the sum.

    >>> deps = [[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]]
    >>> chain = DFGraph.from_nodes(cost=[1] * 8, size=[8] * 8, deps=deps, backward=[False] * 4 + [True] * 4)
    >>> ChenGreedy(threshold=8).solve(Problem(graph=chain, budget=32)).cost
    9.0
    """

    candidates: Candidates = "linearized"
    threshold: int | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and self.threshold < 0:
            raise ValueError(f"threshold is {self.threshold}, must be ≥ 0 bytes")

    def solve(self, problem: Problem) -> Solution:
        """The cheapest schedule within the budget, of the thresholds tried in time."""
        deadline = Deadline(problem.time_limit)
        graph, turn = problem.graph, _turn(problem.graph)
        places = _places(graph, self.candidates, turn)
        made = [sum(graph.tensors[t].size for t in op.outputs) for op in graph.ops[:turn]]
        evenly = max(sum(made) // max(len(places), 1), 1)
        thresholds = [0, *_sweep(evenly, sum(made))] if self.threshold is None else [self.threshold]
        cuts = (_filled(made, places, b) for b in thresholds)
        return cheapest(problem, _sequences(graph, turn, cuts, deadline))


def _turn(graph: DFGraph) -> int:
    """The first backward op: all ops before it are forward ops."""
    return next((i for i, op in enumerate(graph.ops) if op.backward), graph.n_ops)


def _places(graph: DFGraph, candidates: Candidates, turn: int) -> Sequence[int]:
    """The ops after which a segment may end, in base order."""
    if candidates == "linearized" or turn == 0:
        return range(turn)
    return sorted({0, turn - 1}.union(v for v in articulation_points(graph) if v < turn))


def _sweep(low: int, high: int) -> list[int]:
    """Up to 32 integers from low to high, in about equal ratios; from the largest down."""
    if high < low:
        return []
    steps = {round(math.exp(x)) for x in np.linspace(math.log(low), math.log(high), _SWEEP)}
    return sorted((min(max(x, low), high) for x in steps), reverse=True)


def _filled(made: Sequence[int], places: Sequence[int], threshold: int) -> list[int]:
    """Algorithm 3: the places at which the bytes made since the last cut exceed the threshold."""
    cuts, segment, start = [], 0, 0
    for v in places:
        segment += sum(made[start : v + 1])
        start = v + 1
        if segment > threshold:
            cuts.append(v)
            segment = 0
    return cuts


def _sequences(
    graph: DFGraph, turn: int, choices: Iterator[Sequence[int]], deadline: Deadline, longest: float = math.inf
) -> Iterator[Sequence[int]]:
    """The three versions of each choice of cuts, except schedules of more than ``longest`` computes."""
    if turn == graph.n_ops:
        yield range(graph.n_ops)
        return
    tried: set[tuple[int, ...]] = set()
    for cuts in map(tuple, choices):
        for moments in _moments(graph, cuts, turn) if cuts not in tried else ():
            sequence: list[int] = []
            look = _LOOK
            for chunk in chunks_from_moments(graph, moments):
                sequence += chunk
                if len(sequence) > look:
                    look += _LOOK
                    if deadline.passed:
                        return
                if len(sequence) > longest:
                    break
            else:
                if len(sequence) > _LOOK and deadline.left_s < judging_s(graph):
                    return
                yield sequence
            if deadline.passed:
                return
        tried.add(cuts)


def _moments(graph: DFGraph, cuts: Sequence[int], turn: int) -> Iterator[dict[int, npt.NDArray[np.bool_]]]:
    """The three versions (see the module), each as a map: backward op → the tensors kept before it."""
    kept = graph.producer >= turn
    for v in cuts:
        kept[graph.makes.row(v)] = True
    inner = [v for v in cuts if v < turn - 1]
    last_too = kept | (graph.producer > (inner[-1] if inner else -1))
    yield {turn: last_too}
    yield {turn: kept}
    entered = _entered(graph, inner, kept, turn)
    if entered and len(entered) <= _MOST_MOMENTS:
        yield dict.fromkeys(entered, kept) | {turn: last_too}


def _entered(graph: DFGraph, cuts: Sequence[int], kept: npt.NDArray[np.bool_], turn: int) -> list[int]:
    """The later backward ops that are the first to read dropped tensors of an earlier segment."""
    segments = np.searchsorted(cuts, graph.producer)
    current, entered = len(cuts), []
    for v in range(turn, graph.n_ops):
        read = graph.reads.row(v)
        dropped = read[(graph.producer[read] >= 0) & ~kept[read]]
        earliest = int(segments[dropped].min(initial=current))
        if earliest < current and v > turn:
            entered.append(v)
        current = earliest
    return entered

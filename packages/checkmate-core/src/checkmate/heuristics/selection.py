"""The best of some op sequences: the cheapest one whose peak is within the budget, as a solution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkmate.analysis import floor
from checkmate.model.schedule import Schedule
from checkmate.problem.problem import Problem
from checkmate.problem.solution import Solution
from checkmate.simulate import Timeline, simulate

__all__ = ["cheapest"]


def cheapest(problem: Problem, sequences: Iterable[Sequence[int]], *, first: bool = False) -> Solution:
    """Judge each op sequence, freed as early as is legal; return the cheapest that fits.

    Among equally cheap ones the lowest peak wins, then the first; with ``first``, the first that fits is
    returned. If none fits: infeasible below the proved floor of the graph, else unknown.

    >>> from checkmate.model.graph import DFGraph
    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    >>> cheapest(Problem(graph=graph, budget=6), [[0, 0, 1], [0, 1]]).cost
    2.0
    """
    graph = problem.graph
    if problem.budget < floor(graph).size:
        return Solution.infeasible(problem)
    best: tuple[float, int] | None = None
    chosen: Timeline | None = None
    for sequence in sequences:
        timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
        rank = (timeline.cost, timeline.peak)
        if timeline.peak <= problem.budget and (best is None or rank < best):
            best, chosen = rank, timeline
            if first:
                break
    return Solution.unknown(problem) if chosen is None else Solution.found(problem, chosen)

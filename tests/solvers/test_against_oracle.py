"""How near ``auto`` comes to the optimum of the exhaustive oracle, and that it claims nothing false.

The graphs are drawn here, not by Hypothesis, which prefers simple ones: the shares below are of a population.
"""

from __future__ import annotations

import itertools
import math
from random import Random

from checkmate import DFGraph, Op, Problem, Status, Tensor, floor, keep_all_peak
from checkmate_solvers.auto import Auto
from checkmate_solvers.local_search import LocalSearch

SEARCHING = Auto(local=LocalSearch(patience=8), without=("exhaustive",))
"""Solves tiny graphs in the way of large ones, with less patience."""


def drawn(random: Random) -> DFGraph:
    return irregular(random) if random.random() < 0.5 else training_step(random)


def irregular(random: Random) -> DFGraph:
    """Up to 14 ops: several outputs, workspace, ops that run only once, needless ops."""
    ops: list[Op] = []
    sizes: list[int] = []
    for i in range(random.randint(4, 14)):
        near = range(max(0, len(sizes) - 4), len(sizes)) if random.random() < 0.6 else range(len(sizes))
        read = random.sample(near, min(len(near), random.choice([0, 1, 1, 2, 2, 3])))
        made = range(len(sizes), len(sizes) + (2 if random.random() < 0.15 else 1))
        sizes += [random.randint(1, 9) for _ in made]
        ops.append(
            Op(
                name=str(i),
                inputs=tuple(read),
                outputs=tuple(made),
                cost=random.randint(1, 9),
                workspace=random.choice([0, 0, 0, 3]),
                recomputable=random.random() > 0.08,
            )
        )
    read_by_some = {t for op in ops for t in op.inputs}
    ends = [t for t in range(len(sizes)) if t not in read_by_some and random.random() < 0.8]
    return DFGraph(
        ops=tuple(ops),
        tensors=tuple(Tensor(name=str(t), size=size) for t, size in enumerate(sizes)),
        outputs=tuple(ends or [len(sizes) - 1]),
    )


def training_step(random: Random) -> DFGraph:
    """Two to six unequal layers, a loss, and the mirrored backward pass; at times with a skip."""
    layers = random.randint(2, 6)
    n = 2 * layers + 1
    reads = [{i - 1} if i else set() for i in range(layers + 1)]
    if layers > 2 and random.random() < 0.5:
        reads[random.randint(2, layers)].add(0)
    reads += [{j - 1, n - 1 - j} for j in range(layers + 1, n)]
    return DFGraph.from_nodes(
        cost=[random.randint(1, 9) for _ in range(n)],
        size=[random.randint(1, 9) for _ in range(n)],
        deps=[sorted(row) for row in reads],
    )


def problems(count: int) -> list[Problem]:
    """Those where keeping everything does not fit, and the floor does."""
    random, found = Random(0), list[Problem]()
    while len(found) < count:
        graph = drawn(random)
        low, high = floor(graph).size, keep_all_peak(graph)
        if low < high:
            budget = random.randint(low, high - 1)
            found.append(Problem(graph=graph, budget=budget, fixed_order=random.random() < 0.5))
    return found


def test_auto_solves_every_tiny_graph_to_proof(oracle) -> None:
    for problem in problems(400):
        optimum, solution = oracle.optimum(problem), Auto().solve(problem)
        assert solution.status is (Status.OPTIMAL if math.isfinite(optimum) else Status.INFEASIBLE)
        assert solution.cost == optimum


def test_the_search_is_optimal_on_nearly_all_tiny_graphs_and_never_far_off(oracle) -> None:
    worse: list[float] = []
    solved = 0
    for problem in problems(240):
        optimum, solution = oracle.optimum(problem), SEARCHING.solve(problem)
        assert solution.bound <= optimum * (1 + 1e-9)
        assert (solution.status is Status.INFEASIBLE) <= math.isinf(optimum)
        assert (solution.status is Status.OPTIMAL) <= (solution.cost <= optimum * (1 + 1e-9))
        if math.isfinite(optimum):
            solved += 1
            worse += [solution.cost / optimum - 1] if solution.cost > optimum * (1 + 1e-9) else []
    assert solved >= 200
    assert len(worse) <= 0.03 * solved
    assert max(worse, default=0) <= 0.02


def test_all_small_training_steps_with_skips_are_solved_to_the_optimum(oracle) -> None:
    reads = [[], [0], [1], [2], [3], [4, 3], [5, 2], [6, 1], [7, 0]]
    for costs, budget in itertools.product(itertools.product((1, 3), repeat=4), (3, 4, 5)):
        graph = DFGraph.from_nodes(cost=[*costs, *reversed(costs), 1], size=[1] * 9, deps=reads)
        problem = Problem(graph=graph, budget=budget, fixed_order=True)
        assert SEARCHING.solve(problem).cost == oracle.optimum(problem)

"""Random graphs of a few ops, by default small enough for the exhaustive oracle."""

from __future__ import annotations

from random import Random

from checkmate import DFGraph, Op, Problem, Tensor, floor, keep_all_peak

__all__ = ["tiny_problems"]


def tiny_problems(count: int, seed: int, ops: tuple[int, int] = (4, 14)) -> list[Problem]:
    """Problems of ``ops`` ops, at least and at most, half of them with the base order fixed.

    Keeping everything does not fit, and the floor does.
    """
    random, found = Random(seed), list[Problem]()
    while len(found) < count:
        graph = irregular(random, ops) if random.random() < 0.5 else training_step(random, ops)
        low, high = floor(graph).size, keep_all_peak(graph)
        if low < high:
            budget = random.randint(low, high - 1)
            found.append(Problem(graph=graph, budget=budget, fixed_order=random.random() < 0.5))
    return found


def irregular(random: Random, number: tuple[int, int]) -> DFGraph:
    """Ops with several outputs, workspace, ops that run only once, needless ops."""
    ops: list[Op] = []
    sizes: list[int] = []
    for i in range(random.randint(*number)):
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


def training_step(random: Random, number: tuple[int, int]) -> DFGraph:
    """Unequal layers, a loss, and the mirrored backward pass; at times with a skip."""
    layers = random.randint(number[0] // 2, (number[1] - 1) // 2)
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

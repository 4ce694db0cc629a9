"""Classic graphs, one op = one tensor: chains, and random graphs in layers, with a mirrored backward pass.

The mirror of a forward graph (Jain et al., MLSys 2020, section 4.1) is a loss, which reads the ends of the
graph, and one backward node for each forward node v, in reverse order. Each reads v and the backward nodes of
all readers of v; or the loss, if v is an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import NormalDist
from typing import Literal

from checkmate.errors import GraphError
from checkmate.model.graph import DFGraph

__all__ = ["chain", "check_counts", "random_layered"]


_MIXTURE = ((0.3, NormalDist(500, 500)), (0.6, NormalDist(1000, 1000)), (0.9, NormalDist(3000, 1000)))
_LARGE = NormalDist(5000, 1000)


def check_counts(where: str, *, least: int = 1, **counts: object) -> None:
    """Raise GraphError unless each count is a whole number ≥ ``least``; it names generator and argument."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise GraphError(f"{where}: {name} is {count!r}, must be a whole number ≥ {least}")


def chain(layers: int, *, cost: Literal["unit", "random"] = "unit", size: int = 1, seed: int = 0) -> DFGraph:
    """``layers`` ops in a row, a loss, and ``layers`` backward ops: 2·layers + 1 nodes of ``size`` bytes.

    The linear graphs on which Griewank and Walther ("Algorithm 799: revolve", 2000) and Chen et al.
    ("Training deep nets with sublinear memory cost", 2016) count recomputation.

    Args:
        layers: number of forward ops, ≥ 1.
        cost: ``"unit"`` = 1 for every op; ``"random"`` = a whole number from 1 to 100 for each forward op,
            evenly distributed, and twice that for its backward op.
        size: bytes of each tensor.
        seed: the seed of the random costs.

    Raises:
        GraphError: on an invalid argument.

    >>> chain(8).n_ops, chain(8).ideal_cost
    (17, 17.0)
    """
    check_counts("chain", layers=layers)
    if cost not in ("unit", "random"):
        raise GraphError(f"chain: cost is {cost!r}, must be 'unit' or 'random'")
    random = Random(seed)
    forward = [1 if cost == "unit" else 1 + int(100 * random.random()) for _ in range(layers)]
    return _training_step(
        cost=forward,
        backward_cost=[c if cost == "unit" else 2 * c for c in forward],
        size=[size] * layers,
        deps=[[i - 1] if i else [] for i in range(layers)],
        loss=(1, size),
        name=f"chain{layers}",
    )


def random_layered(
    n: int,
    *,
    seed: int = 0,
    width: int | None = None,
    density: float = 0.35,
    skips: float = 0.14,
    training: bool = False,
) -> DFGraph:
    """A random graph in layers, with one source and one sink: the family of MOCCASIN's RL graphs.

    Between source and sink there are layers of 1 to 2·width − 1 ops. An op reads each op of the layer before
    with probability ``density``, and at least one; with each such read comes, with probability ``skips / (1 −
    skips)``, one from any earlier layer. The sink reads every op that no other op reads. Costs are
    whole numbers from 0 to 999, evenly distributed. Sizes are absolute values of a mixture of four normal
    distributions (means 500, 1000, 3000, 5000, deviations 500, 1000, 1000, 1000, weights .3, .3, .3, .1),
    rounded to tens.

    Such graphs come from Gagrani et al., "Neural topological ordering for computation graphs" (NeurIPS 2022),
    and Bartan et al., "Moccasin" (ICML 2023). With the defaults, the number of reads and the spread of sizes
    are near those of the published RL1 (n = 100, 236 reads) and RL2 (n = 250, 944 reads). The rule for layers
    is our own, so the graphs differ from the published ones.

    Args:
        n: number of ops, ≥ 3; with ``training``, of forward ops.
        seed: the seed of all random choices.
        width: mean number of ops in a layer, ≥ 1; default √n / 2.
        density: probability from 0 to 1.
        skips: share of reads that skip layers, from 0 to ½.
        training: True = add a loss (cost 0) and a mirrored backward pass at twice the cost.

    Raises:
        GraphError: on numbers out of range.

    >>> graph = random_layered(100, seed=1)
    >>> graph.n_ops, len(graph.outputs), graph == random_layered(100, seed=1)
    (100, 1, True)
    """
    check_counts("random_layered", n=n, least=3)
    width = round(math.sqrt(n) / 2) if width is None else width
    check_counts("random_layered", width=width)
    if not (0 <= density <= 1 and 0 <= skips <= 0.5):
        raise GraphError(f"random_layered: density {density} must be in [0, 1], skips {skips} in [0, 0.5]")
    random = Random(seed)
    deps = _layered_reads(random, n, width, density, skips / (1 - skips))
    cost = [int(1000 * random.random()) for _ in range(n)]
    size = [_mixed_size(random) for _ in range(n)]
    if not training:
        return DFGraph.from_nodes(cost=cost, size=size, deps=deps, name=f"layered{n}")
    return _training_step(
        cost=cost,
        backward_cost=[2 * c for c in cost],
        size=size,
        deps=deps,
        loss=(0, size[-1]),
        name=f"layered{n}-training",
    )


def _layered_reads(random: Random, n: int, width: int, density: float, skip: float) -> list[list[int]]:
    """The reads of each op of source, layers and sink.

    Only ``Random.random`` is used: Python guarantees its stream.
    """
    deps: list[list[int]] = [[]]
    read: set[int] = set()
    before = range(1)
    while len(deps) < n - 1:
        start = len(deps)
        stop = min(n - 1, start + 1 + int((2 * width - 1) * random.random()))
        for _ in range(start, stop):
            near = [i for i in before if random.random() < density]
            near = near or [before[int(len(before) * random.random())]]
            far = [int(before.start * random.random()) for _ in near if random.random() < skip]
            row = sorted({*near, *far})
            deps.append(row)
            read.update(row)
        before = range(start, stop)
    deps.append([i for i in range(n - 1) if i not in read])
    return deps


def _mixed_size(random: Random) -> int:
    share, quantile = random.random(), random.random()
    normal = next((each for upto, each in _MIXTURE if share < upto), _LARGE)
    return max(10, 10 * round(abs(normal.inv_cdf(min(max(quantile, 1e-9), 1 - 1e-9))) / 10))


def _training_step(
    *,
    cost: Sequence[int],
    backward_cost: Sequence[int],
    size: Sequence[int],
    deps: Sequence[Sequence[int]],
    loss: tuple[int, int],
    name: str,
) -> DFGraph:
    """The forward graph and its mirror; ``loss`` is the loss's cost and size."""
    n = len(cost)
    readers: list[list[int]] = [[] for _ in range(n)]
    for v, row in enumerate(deps):
        for u in row:
            readers[u].append(v)
    mirror = [[v, *(2 * n - w for w in readers[v] or [n])] for v in reversed(range(n))]
    return DFGraph.from_nodes(
        cost=[*cost, loss[0], *reversed(backward_cost)],
        size=[*size, loss[1], *reversed(size)],
        deps=[*deps, [v for v in range(n) if not readers[v]], *mirror],
        names=[*(f"{v}" for v in range(n)), "loss", *(f"{v}.backward" for v in reversed(range(n)))],
        backward=[v >= n for v in range(2 * n + 1)],
        name=name,
    )

"""Random training chains: tiny ones, of which the oracle knows the optimum."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from checkmate import DFGraph, Op, Tensor

KNOWN_CHAINS = [
    *((4, budget, cost) for budget, cost in zip(range(2, 7), (math.inf, 15, 11, 10, 9), strict=True)),
    *((8, budget, cost) for budget, cost in zip(range(2, 8), (math.inf, 45, 26, 22, 21, 20), strict=True)),
    *((8, budget, cost) for budget, cost in zip(range(8, 11), (19, 18, 17), strict=True)),
]
"""Layers of a unit chain, a budget, and the least cost, which core's tests check with the oracle."""


@st.composite
def training_chains(draw: st.DrawFn, *, most_layers: int = 5) -> DFGraph:
    """Backward ops read inputs, outputs or by-products of their layer, and make perhaps a weight's gradient.

    The loss runs once; it and the gradients of the weights are outputs.
    """
    layers = draw(st.integers(1, most_layers))
    numbers, flags = st.integers(1, 5), st.booleans()
    tensors: list[Tensor] = []
    ops: list[Op] = []

    def tensor() -> int:
        tensors.append(Tensor(name="", size=draw(numbers)))
        return len(tensors) - 1

    def run(reads: list[int], makes: list[int], *, recomputable: bool = True) -> None:
        workspace = draw(st.sampled_from([0, 0, 2]))
        ops.append(
            Op(
                name="",
                inputs=tuple(dict.fromkeys(reads)),
                outputs=tuple(makes),
                cost=draw(numbers),
                workspace=workspace,
                recomputable=recomputable,
            )
        )

    batch, outputs = tensor(), []
    made: list[list[int]] = [[batch]]
    for _ in range(layers):
        made.append([tensor() for _ in range(draw(st.sampled_from([1, 1, 1, 2])))])
        run([made[-2][0]], made[-1])
    loss, gradient = tensor(), tensor()
    outputs.append(loss)
    run([made[-1][0]], [loss, gradient], recomputable=False)
    for layer in range(layers, 0, -1):
        reads = [gradient, *made[layer][1:]]
        reads += [made[layer - 1][0]] * draw(flags) + [made[layer][0]] * draw(flags)
        gradient = tensor()
        weight = [tensor()] if draw(flags) else []
        outputs += weight
        run(reads, [gradient, *weight])
    return DFGraph(ops=tuple(ops), tensors=tuple(tensors), inputs=(batch,), outputs=(*outputs, gradient))

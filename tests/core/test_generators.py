"""Generators: same arguments, same graph; training steps that obey calculus; numbers known by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, GraphError, floor, keep_all_peak, solve
from checkmate.analysis import needed_ops
from checkmate.generators import chain, densenet, random_layered, residual, transformer, unet

_SMALL_WORDS: dict[str, Any] = {"batch": 2, "sequence": 8, "d_model": 16, "heads": 2, "vocabulary": 32}
TRAINING_STEPS: dict[str, Callable[[], DFGraph]] = {
    "unit chain": lambda: chain(9),
    "random chain": lambda: chain(9, cost="random", size=7, seed=3),
    "residual": lambda: residual(3, batch=2, channels=4, side=8),
    "unet": lambda: unet(3, batch=2, channels=4, side=16),
    "densenet": lambda: densenet(5, batch=2, side=8),
    "transformer": lambda: transformer(3, **_SMALL_WORDS),
    "transformer with dropout": lambda: transformer(3, dropout=True, **_SMALL_WORDS),
    "layered": lambda: random_layered(20, seed=2, training=True),
}
NETS = ("residual", "unet", "densenet", "transformer", "transformer with dropout")


@pytest.fixture(params=TRAINING_STEPS)
def step(request: pytest.FixtureRequest) -> DFGraph:
    return TRAINING_STEPS[request.param]()


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> DFGraph:
    return TRAINING_STEPS[request.param]()


@pytest.mark.parametrize("name", TRAINING_STEPS)
def test_the_same_arguments_give_the_same_graph(name: str) -> None:
    assert TRAINING_STEPS[name]() == TRAINING_STEPS[name]()


def test_backward_follows_forward_and_every_op_is_needed(step: DFGraph) -> None:
    flags = [op.backward for op in step.ops]
    assert flags == sorted(flags)
    assert 0 < sum(flags) < len(flags)
    assert step.ops[flags.index(True)].name == "loss"
    assert needed_ops(step).all()


def test_recomputation_saves_memory(step: DFGraph) -> None:
    assert floor(step).size < keep_all_peak(step)
    budget = (floor(step).size + 3 * keep_all_peak(step)) // 4
    answer = solve(step, budget=budget, solver="evict-belady")
    assert answer.peak is not None
    assert answer.peak <= budget < keep_all_peak(step)


def test_a_net_gives_the_loss_and_one_gradient_for_each_parameter(net: DFGraph) -> None:
    parameters = [t for t in net.inputs if net.tensors[t].name.endswith(".weight")]
    loss, *gradients = net.outputs
    assert net.tensors[loss].name == "loss"
    assert [net.sizes[t] for t in gradients] == [net.sizes[t] for t in parameters]
    assert net.cost_unit == "flop"


def test_a_tensor_and_its_gradients_have_one_size(net: DFGraph) -> None:
    """The outputs of a backward op have the sizes of the inputs of its op."""
    forward = {op.name: op for op in net.ops if not op.backward}
    followed = 0
    for op in net.ops:
        original = forward.get(op.name.removesuffix(".backward"))
        if op.backward and original is not None:
            made = [net.sizes[t] for t in op.outputs]
            read = [net.sizes[t] for t in original.inputs]
            assert made == read[-len(made) :] or made == read[: len(made)]
            assert op.cost == len(made) * original.cost
            followed += 1
    assert followed > len(net.outputs) // 2


def test_backward_reads_forward_tensors_only_of_its_own_op(net: DFGraph) -> None:
    maker = {t: op.name for op in net.ops for t in op.outputs}
    forward = {op.name: op for op in net.ops if not op.backward}
    for op in net.ops:
        original = forward.get(op.name.removesuffix(".backward"))
        if op.backward and original is not None:
            own = {*original.inputs, *original.outputs}
            assert all(t in own or maker[t] not in forward for t in op.inputs)


def test_the_chain_of_two_layers_by_hand() -> None:
    graph = chain(2, size=3)
    assert [op.inputs for op in graph.ops] == [(), (0,), (1,), (1, 2), (0, 3)]
    assert graph.outputs == (4,)
    assert graph.sizes.tolist() == [3] * 5
    assert floor(graph).size == 9


def test_unit_chains_are_the_linear_graphs_of_the_paper() -> None:
    """n + 1 tensors held at the peak: all activations and one gradient before the last; floor 3."""
    for layers in (1, 2, 8, 30):
        graph = chain(layers)
        assert (graph.n_ops, graph.ideal_cost) == (2 * layers + 1, 2 * layers + 1)
        assert keep_all_peak(graph) == layers + 2
        assert floor(graph).size == 3
    assert chain(8).digest == "21fe1d1cbc4a568c726b72fd5dd35608e336da0584410bb76372dec11a4a81ee"


def test_random_chains_cost_twice_as_much_backward() -> None:
    costs = chain(40, cost="random", seed=1).costs
    assert costs[41:].tolist() == (2 * costs[:40])[::-1].tolist()
    assert set(costs[:40]) <= set(range(1, 101))
    assert len(set(costs[:40])) > 20
    assert chain(40, cost="random", seed=1) != chain(40, cost="random", seed=2)


@given(n=st.integers(3, 80), seed=st.integers(0, 1000), training=st.booleans())
def test_random_layered_graphs_have_one_source_and_one_sink(n: int, seed: int, training: bool) -> None:
    graph = random_layered(n, seed=seed, training=training)
    assert graph.n_ops == (2 * n + 1 if training else n)
    assert [v for v, op in enumerate(graph.ops) if not op.inputs] == [0]
    assert [
        v for v, op in enumerate(graph.ops[:n]) if not len(set(graph.readers.row(v)) & set(range(n)))
    ] == [n - 1]
    assert needed_ops(graph).all()
    assert graph == random_layered(n, seed=seed, training=training)


def test_random_layered_graphs_resemble_the_published_ones() -> None:
    for n, published in ((100, 236), (250, 944)):
        graphs = [random_layered(n, seed=seed) for seed in range(20)]
        assert 0.85 < np.mean([len(graph.reads.indices) for graph in graphs]) / published < 1.15
        sizes = np.concatenate([graph.sizes for graph in graphs])
        assert 1700 < sizes.mean() < 2200
        assert 1450 < sizes.std() < 1800
        assert all(set(graph.costs) <= set(range(1000)) for graph in graphs)
    assert len({random_layered(30, seed=seed).digest for seed in range(20)}) == 20


def test_the_width_and_skips_of_layered_graphs_can_be_set() -> None:
    ladder = random_layered(10, width=1, skips=0)
    assert [op.inputs for op in ladder.ops] == [(), *((i,) for i in range(9))]
    full = random_layered(30, width=4, density=1, skips=0)
    assert len(full.reads.indices) > len(random_layered(30, width=4, density=0, skips=0).reads.indices)


def test_a_residual_net_by_hand() -> None:
    """Forward 3 + 7·b + 2 ops, the loss, backward all but the b sums, and b sums of gradients."""
    graph = residual(4, batch=2, channels=4, side=8, classes=3)
    assert graph.n_ops == (3 + 28 + 2) + 1 + (3 + 24 + 2) + 4
    cost = {op.name: op.cost for op in graph.ops}
    assert cost["stem.conv"] == cost["stem.conv.backward"] == 2 * 2 * 8 * 8 * 3 * 4 * 9
    assert cost["block0.conv1"] == 2 * 2 * 8 * 8 * 4 * 4 * 9
    assert cost["block0.conv1.backward"] == 2 * cost["block0.conv1"]
    weights = 4 * (3 * 4 * 9 + 8 * 4 * 4 * 9 + 9 * 2 * 4 + 4 * 3)
    assert graph.base_size == weights + 4 * 2 * 3 * 8 * 8 + 8 * 2


def test_a_unet_by_hand() -> None:
    graph = unet(2, batch=1, channels=4, side=8)
    assert graph.n_ops == 2 * (2 * 5 + 4 + 2 * 6 + 1) + 1 + 2
    sizes = {tensor.name: tensor.size for tensor in graph.tensors}
    assert sizes["down0.relu2"] == 4 * 4 * 8 * 8
    assert sizes["bottom.relu2"] == 4 * 16 * 2 * 2
    assert sizes["up0.concat"] == 2 * sizes["down0.relu2"]
    assert sizes["down0.pool.saved"] == 8 * 4 * 4 * 4


def test_a_densenet_by_hand() -> None:
    """Sums of gradients: n for the stem, which n + 1 copies read, and n − i for feature i."""
    for layers in (1, 4):
        graph = densenet(layers, batch=1, growth=2, channels=4, side=4)
        assert graph.n_ops == 2 * (4 * layers + 6) + 1 + layers * (layers + 1) // 2
        sizes = {tensor.name: tensor.size for tensor in graph.tensors}
        assert sizes["end.concat"] == 4 * (4 + 2 * layers) * 4 * 4


def test_a_transformer_by_hand() -> None:
    """Matrix products of a layer cost 24·b·s·d² + 4·b·s²·d flops."""
    b, s, d, v = 2, 8, 16, 32
    graph = transformer(3, **_SMALL_WORDS)
    assert graph.n_ops == 30 * 3 + 7
    cost = {op.name: op.cost for op in graph.ops}
    products = ("query", "key", "value", "scores", "context", "projection")
    layer = sum(cost[f"layer1.attention.{each}"] for each in products)
    layer += cost["layer1.mixer.linear1"] + cost["layer1.mixer.linear2"]
    assert layer == 24 * b * s * d**2 + 4 * b * s**2 * d
    assert cost["prediction"] == 2 * b * s * d * v
    parameters = 3 * (12 * d**2 + 4 * d) + 2 * d + 2 * d * v
    assert graph.base_size == 4 * parameters + 2 * 8 * b * s


def test_the_masks_of_dropout_raise_the_floor() -> None:
    words = _SMALL_WORDS | {"batch": 200}
    plain, dropped = transformer(3, **words), transformer(3, dropout=True, **words)
    masks = 3 * 200 * (2 * 8 * 8 + 2 * 8 * 16)
    assert sum(not op.recomputable for op in dropped.ops) == 9
    assert floor(plain).size < floor(dropped).size <= floor(plain).size + masks


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chain(0), r"^chain: layers is 0, must be a whole number ≥ 1"),
        (lambda: chain(True), r"^chain: layers is True"),
        (lambda: chain(2, cost="unti"), r"^chain: cost is 'unti', must be 'unit' or 'random'"),  # type: ignore[arg-type]
        (lambda: chain(2, size=-1), r"size is -1"),
        (lambda: random_layered(2), r"^random_layered: n is 2"),
        (lambda: random_layered(-4), r"^random_layered: n is -4"),
        (lambda: random_layered(9, width=0), r"^random_layered: width is 0"),
        (lambda: random_layered(9, density=inf), r"^random_layered: density inf must be in"),
        (lambda: unet(10**12), r"2\^depth = 2\^1000000000000"),
        (lambda: random_layered(9, skips=0.6), r"skips 0.6 in \[0, 0.5\]"),
        (lambda: residual(-1), r"^residual: blocks is -1, must be a whole number ≥ 0"),
        (lambda: unet(3, side=20), r"^unet: side 20 must be divisible by 2\^depth = 2\^3"),
        (lambda: densenet(2, growth=0), r"^densenet: growth is 0"),
        (lambda: transformer(2, heads=5), r"^transformer: d_model 768 must be divisible by heads 5"),
        (lambda: transformer(2, batch=1.5), r"^transformer: batch is 1.5"),  # type: ignore[arg-type]
    ],
)
def test_senseless_numbers_are_refused(call: Callable[[], DFGraph], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()


def test_the_smallest_nets_are_graphs() -> None:
    for graph in (residual(0), unet(0), densenet(0), transformer(0), chain(1), random_layered(3)):
        assert needed_ops(graph).all()

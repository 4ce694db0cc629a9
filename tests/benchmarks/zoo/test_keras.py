"""The networks in Keras: the same graphs of layers as in PyTorch, and TensorFlow's own traces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import zoo
from checkmate import DFGraph, keep_all_peak
from steps.process import measured

PAPERS = [name for name, network in zoo.NETWORKS.items() if "keras" in network.frontends]


@pytest.mark.parametrize("name", PAPERS)
def test_layers_are_those_of_pytorch_op_by_op_in_flops_and_bytes(
    name: str, agrees: Callable[[str, DFGraph], bool]
) -> None:
    assert agrees(name, zoo.graph(name, frontend="keras", batch=1))


def test_parameters_and_their_gradients_are_the_fixed_bytes() -> None:
    graph = zoo.graph("mobilenet", frontend="keras", small=True)
    assert graph.fixed_size == 8 * zoo.parameter_count("mobilenet", frontend="keras", small=True)
    assert keep_all_peak(graph) > graph.base_size


def test_layers_are_proportional_to_the_batch() -> None:
    one, three = (zoo.graph("unet", frontend="keras", batch=batch, small=True) for batch in (1, 3))
    assert [op.inputs for op in one.ops] == [op.inputs for op in three.ops]
    assert [3 * tensor.size for tensor in one.tensors if tensor.name != "loss"] == [
        tensor.size for tensor in three.tensors if tensor.name != "loss"
    ]


def test_ops_and_layers_count_the_same_flops_and_have_about_the_same_peak() -> None:
    layers, ops = (
        zoo.graph("unet", level=level, frontend="keras", batch=2, small=True) for level in ("layer", "op")
    )
    assert ops.n_ops > layers.n_ops
    assert layers.ideal_cost == pytest.approx(ops.ideal_cost, rel=0.1)
    assert keep_all_peak(layers) == pytest.approx(keep_all_peak(ops), rel=0.3)


@pytest.mark.parametrize(("name", "blocks"), [("vgg19", 5), ("unet", 8), ("segnet", 8), ("fcn8", 5)])
def test_a_network_in_blocks_is_the_same_function(name: str, blocks: int) -> None:
    import keras
    import numpy as np

    from zoo.keras_nets import NETS, in_blocks

    wrapped = []

    def wrap(block: keras.Model) -> keras.Model:
        wrapped.append(block)
        return block

    model = NETS[name](True, side=32)
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype(np.float32)
    assert np.array_equal(in_blocks(model, wrap)(x), model(x))
    assert len(wrapped) == blocks


def test_a_loop_whose_loss_changes_its_weight_holds() -> None:
    task = {"habit": "a weight of the loss that changes in each step, as a tensor", "time_limit": 5.0}
    assert measured("keras_varies", task)["fails"] == []

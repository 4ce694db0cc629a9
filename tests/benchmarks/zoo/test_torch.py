"""The networks in PyTorch: parameters and FLOPs as published, valid graphs, bytes by the batch."""

from __future__ import annotations

import functools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import zoo
from checkmate import DFGraph, keep_all_peak, read_graph, solve

# Parameters, and multiply-adds of a forward pass of one example, in billions.
KNOWN = {
    "vgg16": (138_357_544, 15.47),  # torchvision's documentation of its weights: 138.36 M, 15.47
    "vgg19": (143_667_240, 19.63),  # the same: 143.67 M, 19.63
    "mobilenet": (4_231_976, 0.569),  # Howard et al., table 8: 4.2 M, 569 M
    "resnet50": (25_583_592, 3.86),  # He et al., table 1: 3.8; 25,557,032, and Keras' 26,560 biases
    "densenet121": (7_978_856, 2.83),  # torchvision's: 7.98 M, 2.83
    "gpt2": (124_439_808, None),  # the released weights
    "bert": (109_514_298, None),  # Devlin et al.: 110 M
    "llama": (1_235_814_400, None),  # the model card: 1.23 B
    "vit": (86_567_656, 17.56),  # torchvision's: 86.57 M, 17.56
}
PAPERS = [name for name, network in zoo.NETWORKS.items() if "keras" in network.frontends]


@functools.cache
def full(name: str) -> DFGraph:
    return zoo.graph(name, batch=1)


def forward(graph: DFGraph) -> float:
    return sum(op.cost for op in graph.ops if not op.backward)


def needs(name: str) -> None:
    for module in zoo.missing(name):
        pytest.importorskip(module)


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_and_flops_are_the_published_ones(name: str) -> None:
    needs(name)
    parameters, products = KNOWN[name]
    graph = full(name)
    assert zoo.parameter_count(name) == parameters
    assert graph.fixed_size == 2 * 4 * parameters
    if products is not None:
        assert forward(graph) == pytest.approx(2e9 * products, rel=0.02)
    else:  # 2 for each parameter and token, at least; embeddings that are looked up are no products
        tokens = {"gpt2": 1024, "bert": 512, "llama": 2048}[name]
        assert 0.75 < forward(graph) / (2 * parameters * tokens) < 1.25


@pytest.mark.parametrize("name", PAPERS)
def test_layers_are_those_of_keras_op_by_op_in_flops_and_bytes(
    name: str, agrees: Callable[[str, DFGraph], bool]
) -> None:
    assert agrees(name, full(name))


@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_every_small_network_is_judged_valid_and_each_layer_has_one_backward_op(name: str) -> None:
    needs(name)
    graph = zoo.graph(name, batch=2, small=True)
    assert graph.cost_unit == "flop"
    assert keep_all_peak(graph) > graph.base_size
    assert sum(op.backward for op in graph.ops) == graph.n_ops // 2


@pytest.mark.parametrize("name", ["mobilenet", "unet", "gpt2"])
def test_ops_and_layers_count_the_same_flops_and_have_about_the_same_peak(name: str) -> None:
    needs(name)
    layers, ops = (zoo.graph(name, level=level, batch=2, small=True) for level in ("layer", "op"))
    assert ops.n_ops > layers.n_ops
    assert forward(layers) == pytest.approx(forward(ops), rel=0.05)
    assert keep_all_peak(layers) == pytest.approx(keep_all_peak(ops), rel=0.2)


@pytest.mark.parametrize("name", PAPERS)
def test_bytes_and_flops_of_the_papers_networks_are_proportional_to_the_batch(name: str) -> None:
    one, three = (zoo.graph(name, batch=batch, small=True) for batch in (1, 3))
    assert [op.inputs for op in one.ops] == [op.inputs for op in three.ops]
    assert [3 * op.cost for op in one.ops] == [op.cost for op in three.ops]
    assert [3 * tensor.size for tensor in one.tensors if tensor.name != "loss"] == [
        tensor.size for tensor in three.tensors if tensor.name != "loss"
    ]
    assert one.fixed_size == three.fixed_size


@pytest.mark.parametrize("name", ["unet", "llama"])
def test_a_small_network_can_be_planned_below_its_peak(name: str) -> None:
    needs(name)
    graph = zoo.graph(name, small=True)
    room = keep_all_peak(graph) - graph.base_size
    found = solve(graph, graph.base_size + 9 * room // 10, solver="heuristics")
    assert 0 <= found.overhead < 1


def test_the_ops_of_a_vgg_are_its_layers() -> None:
    names = [op.name for op in zoo.graph("vgg16", batch=1, small=True).ops if not op.backward]
    assert len(names) == 13 + 5 + 3 + 1  # convolutions, poolings, dense layers, the loss


def test_activations_in_place_and_views_are_no_layers_and_skips_are_edges() -> None:
    graph = zoo.graph("unet", batch=1, small=True)
    names = [op.name for op in graph.ops if not op.backward]
    assert not [name for name in names if re.search("relu|flatten|view", name)]
    concatenated = [op for op in graph.ops if op.name.startswith("cat") and not op.backward]
    assert [len(op.inputs) for op in concatenated] == [2, 2, 2]


def test_the_command_writes_readable_files_and_lists_skipped_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["zoo", "-o", str(tmp_path), "--networks", "segnet", "--small", "--batch", "3"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(zoo, "missing", lambda _, frontend: ["tensorflow"] if frontend == "keras" else [])
    runpy.run_path(str(Path(zoo.__file__).parent), run_name="__main__")
    said = capsys.readouterr().out
    assert "left out: segnet in keras: needs tensorflow" in said
    (file,) = tmp_path.iterdir()
    assert read_graph(file).digest == zoo.graph("segnet", batch=3, small=True).digest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "vgg17"}, "no network 'vgg17'"),
        ({"name": "gpt2", "frontend": "keras"}, "no 'keras' for 'gpt2'"),
        ({"name": "vgg16", "level": "kernel"}, "no level 'kernel'"),
        ({"name": "vgg16", "batch": 0}, "batch is 0"),
    ],
)
def test_unknown_arguments_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        zoo.graph(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "blocks"), [("vgg19", 5), ("unet", 8), ("segnet", 8), ("fcn8", 5), ("mobilenet", 14)]
)
def test_a_network_in_blocks_has_the_same_loss_and_gradients(name: str, blocks: int) -> None:
    torch = pytest.importorskip("torch")
    from zoo.torch_nets import NETS, Checkpointed, in_blocks

    results = []
    for way in (lambda model: model, lambda model: in_blocks(name, model)):
        torch.manual_seed(0)
        model = way(NETS[name](name != "mobilenet"))
        x = torch.randn(2, 3, 32, 32)
        torch.manual_seed(1)  # of dropout
        model(x).square().mean().backward()
        results.append({p.grad for p in model.parameters()})
        found = sum(isinstance(part, Checkpointed) for part in model.modules())
    assert found == blocks
    plain, ours = (sorted(float(g.double().square().sum()) for g in gradients) for gradients in results)
    assert ours == plain

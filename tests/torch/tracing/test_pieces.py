"""Joint graphs in pieces: the same values, in the order and with the bytes of core's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.functional import cross_entropy, normalize

import checkmate_torch
from checkmate import DFGraph, Group, Op, split
from checkmate_torch.private import tree_leaves
from checkmate_torch.tracing.joint_graph import trace_joint
from checkmate_torch.tracing.pieces import Division, in_pieces, with_sums_apart
from checkmate_torch.tracing.regions import Region, find_regions
from checkmate_torch.tracing.traced_graph import TracedGraph

WORDS, WIDTH, BATCH, LENGTH = 96, 8, 2, 12
aten = torch.ops.aten


class Language(nn.Module):
    """A small language model with the loss inside."""

    def __init__(self, *, bias: bool = False, wide: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layers = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH))
        self.blocks = nn.ModuleList(nn.Sequential(*layers) for _ in range(2))
        self.scores = nn.Linear(WIDTH, WORDS, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = h + block(h)
        return cross_entropy(self.scores(h).flatten(0, 1), x.flatten(), label_smoothing=0.1)


class Returning(Language):
    """Returns its scores, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(self.words(x))
        return cross_entropy(scores.flatten(0, 1), x.flatten()), scores


class Images(nn.Module):
    """A network of convolutions, whose first operand needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        norms = nn.GroupNorm(1, 1), nn.GroupNorm(2, 8)
        convolutions = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        first = nn.Sequential(norms[0], convolutions[0], norms[1], nn.ReLU(), nn.MaxPool2d(2))
        self.layers = nn.Sequential(first, convolutions[1], nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return cross_entropy(self.layers(x.to(self.layers[1].weight.dtype).view(-1, 1, 4, 4)), x[:, 0] % 3)


class Contrast(nn.Module):
    """Compares all rows with all: a product reads rows of a tensor, and all of it through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = normalize(self.words(x), dim=-1)
        scores = rows.flatten(0, 1) @ rows.flatten(0, 1).T
        return cross_entropy(scores, torch.arange(BATCH * LENGTH))


def traced(model: nn.Module, dtype: torch.dtype = torch.float32) -> TracedGraph:
    """A step in which the loss is a sum."""
    x = torch.randint(WORDS, (4, 16) if isinstance(model, Images) else (BATCH, LENGTH))
    found = checkmate_torch.trace(model.to(dtype), (x,), cost_model="flops").traced
    return trace_joint(with_sums_apart(found.as_joint), loss=0)


def divided(regions: Sequence[Region], count: int) -> list[Division]:
    found = [Division(region, region.parts(count)) for region in regions]
    return [division for division in found if len(division.parts) > 1]


def numbers_for(module: GraphModule) -> list[Tensor]:
    """Inputs of a joint graph: small words, and numbers."""
    torch.manual_seed(1)
    values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    return [
        torch.randn(x.shape, dtype=x.dtype) if x.is_floating_point() else torch.randint(3, x.shape)
        for x in values
    ]


def run(module: GraphModule) -> list[Tensor]:
    inputs = numbers_for(module)
    made = Interpreter(module).run(*inputs)
    return [x for x in tree_leaves(made) if isinstance(x, Tensor)]


MODELS = pytest.mark.parametrize(
    "make",
    [Language, lambda: Language(bias=True), Returning, Images, Contrast],
    ids=["language", "bias", "returning", "images", "contrast"],
)


@pytest.mark.parametrize(
    ("count", "dtype", "within"),
    [(2, torch.float32, 1e-5), (3, torch.float64, 1e-12), (24, torch.float64, 1e-12)],
)
@MODELS
def test_pieces_compute_the_same(make: Any, count: int, dtype: torch.dtype, within: float) -> None:
    torch.manual_seed(0)
    step = traced(make(), dtype)
    divisions = divided(find_regions(step, 0), count)
    assert divisions
    made = in_pieces(step, divisions)
    assert (made.n_primals, made.n_outputs) == (len(step.primals), len(step.forward_outputs))
    found, expected = run(made.module), run(step.joint)
    assert len(found) == len(expected) > 1
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert (x - y).norm() <= within * y.norm()


def test_the_graph_that_is_cut_does_not_change() -> None:
    step = traced(Language())
    before = str(step.joint.graph)
    in_pieces(step, divided(find_regions(step, 0), 2))
    assert str(step.joint.graph) == before


def test_a_mean_is_a_sum_by_its_weights() -> None:
    torch.manual_seed(0)
    x = torch.randint(WORDS, (BATCH, LENGTH))
    found = checkmate_torch.trace(Language().double(), (x,), cost_model="flops").traced
    before = str(found.joint.graph)
    apart = with_sums_apart(found.as_joint)
    assert str(found.joint.graph) == before
    for mine, other in zip(run(apart.module), run(found.joint), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=0)


@MODELS
@pytest.mark.parametrize("count", [2, 4])
def test_pieces_run_one_after_another_and_sums_take_no_bytes_beside_them(make: Any, count: int) -> None:
    step = traced(make())
    region = find_regions(step, 0)[0]
    (division,) = divided([region], count)
    parts = trace_joint(in_pieces(step, [division]), loss=0)
    ops = list(zip(parts.graph.ops, parts.nodes, strict=True))
    pieces = [node.meta["piece"] for _, node in ops if node is not None and "piece" in node.meta]
    assert {piece.count for piece in pieces} == {len(division.parts)}
    for name in {piece.name for piece in pieces}:
        order = [piece.index for piece in pieces if piece.name == name]
        assert order == sorted(order)
    adding = [op for op, node in ops if node is not None and node.meta.get("accumulates")]
    first_writes = [op for op in adding if not op.reuses]
    assert len(adding) > len(first_writes)
    assert all(op.name.startswith("written") or "[1/" in op.name for op in first_writes)


def test_core_and_the_executor_mean_the_same_by_pieces() -> None:
    model = Language()
    for module in (model.words, model.blocks):  # no gradient of the rows is read as a whole
        module.requires_grad_(False)
    step = traced(model)
    (division,) = divided(find_regions(step, 0)[:1], 4)
    region = division.region
    group = Group(rows=region.rows, rules=region.rules, barrier=step.boundary)
    expected = split(step.graph, group, 4)
    parts = trace_joint(in_pieces(step, [division]), loss=0)
    names = [op.name for op in step.graph.ops]
    found = [
        (op, *source_of(op, node, names))
        for op, node in zip(parts.graph.ops, parts.nodes, strict=True)
        if node is None or not is_sum_of_numbers(node)
    ]
    assert [(piece.op, piece.index) for piece in expected.pieces] == [(v, index) for _, v, index in found]
    for piece, (op, _, _) in zip(expected.graph.ops, found, strict=True):
        assert sizes(expected.graph, piece.outputs) == sizes(parts.graph, op.outputs)
        if any(size > 8 for size in sizes(parts.graph, op.outputs)) and "[" in op.name:
            assert sizes(expected.graph, piece.reuses) == sizes(parts.graph, op.reuses)


def is_sum_of_numbers(node: Node) -> bool:
    """Whether a node adds single numbers up, which is a part of a piece in core's model."""
    return node.target is aten.add.Tensor and "accumulates" in node.meta and node.meta["val"].dim() == 0


def source_of(op: Op, node: Node | None, names: list[str]) -> tuple[int, int | None]:
    """The op that a new one runs, and the number of its piece."""
    piece = None if node is None else node.meta.get("piece")
    return (names.index(op.name), None) if piece is None else (names.index(piece.name), piece.index)


def sizes(graph: DFGraph, tensors: Sequence[int]) -> list[int]:
    return [graph.tensors[t].size for t in tensors]


class Residual(nn.Module):
    """Blocks so wide that the regions of their layers are neighbours, at views."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layers = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.blocks = nn.ModuleList(nn.Sequential(*layers) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = h + block(h)
        return h.square().sum()


@pytest.mark.parametrize("make", [Language, Residual])
def test_regions_may_have_different_numbers_of_pieces(make: type[nn.Module]) -> None:
    step = traced(make(), torch.float64)
    regions = find_regions(step, 0)
    divisions = [Division(region, region.parts(3 + k % 3)) for k, region in enumerate(regions)]
    cut = in_pieces(step, [d for d in divisions if len(d.parts) > 1]).module
    assert len({len(d.parts) for d in divisions}) > 1
    torch.testing.assert_close(run(cut), run(step.joint), rtol=0, atol=1e-9)

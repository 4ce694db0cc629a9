"""Regions of a step that can run in pieces: where they are, where they end, which are alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import checkmate_torch
from checkmate_torch.tracing.joint_graph import trace_joint
from checkmate_torch.tracing.pieces import with_sums_apart
from checkmate_torch.tracing.regions import Region, find_regions
from checkmate_torch.tracing.traced_graph import TracedGraph

WORDS, WIDTH, BATCH, LENGTH = 512, 16, 2, 64
aten = torch.ops.aten


class Block(nn.Module):
    """Attention whose scores are a tensor, and a wide hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.together = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 16 * WIDTH), nn.GELU(), nn.Linear(16 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.together(self.norm(x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind()
        x = x + ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return x + self.wide(x)


class Language(nn.Module):
    """A small language model with the loss inside."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)), nn.LayerNorm(WIDTH))
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cross_entropy(self.scores(self.blocks(self.words(x))).flatten(0, 1), x.flatten())


def traced(blocks: int = 0, model: nn.Module | None = None) -> TracedGraph:
    """A step in which the loss is a sum, as the planner looks for regions."""
    torch.manual_seed(0)
    model = Language(blocks) if model is None else model
    x = torch.randint(WORDS, (BATCH, LENGTH))
    found = checkmate_torch.trace(model, (x,), cost_model="flops").traced
    return trace_joint(with_sums_apart(found.as_joint), loss=0)


def targets(region: Region) -> set[object]:
    return {node.target for node in region.ops}


def test_around_scores_are_the_product_the_loss_and_their_gradients() -> None:
    region = find_regions(traced(), 0)[0]
    assert region.rows == BATCH * LENGTH
    assert targets(region) == {
        aten.mm.default,
        aten._unsafe_view.default,
        aten.view.default,
        aten._log_softmax.default,
        aten.detach.default,
        aten.nll_loss_forward.default,
        aten.nll_loss_backward.default,
        aten._log_softmax_backward_data.default,
        aten.t.default,
    }
    products = [node for node in region.ops if node.target is aten.mm.default]
    assert len(products) == 3
    assert sum(op.results == ("sum",) for node, op in region.ops.items() if node in products) == 1


def test_a_mean_is_read_by_no_region_until_it_is_a_sum() -> None:
    found = checkmate_torch.trace(Language(0), (torch.randint(WORDS, (2, 8)),), cost_model="flops").traced
    assert all(aten.nll_loss_forward.default not in targets(region) for region in find_regions(found, 0))


@pytest.mark.parametrize("blocks", [0, 3])
def test_no_op_is_in_two_regions(blocks: int) -> None:
    regions = find_regions(traced(blocks), 0)
    ops = [node for region in regions for node in region.ops]
    assert len(regions) > blocks
    assert len(set(ops)) == len(ops)


def test_regions_are_in_the_order_of_working_sets_and_end_at_small_ones() -> None:
    step = traced(3)
    everywhere = find_regions(step, 0)
    largest = everywhere[0]
    assert aten._log_softmax.default in targets(largest)
    assert find_regions(step, 2**40) == []
    some = find_regions(step, BATCH * LENGTH * WORDS * 4)
    assert 0 < len(some) < len(everywhere)
    assert [region.name for region in some] == [region.name for region in everywhere[: len(some)]]
    assert aten.native_layer_norm.default not in targets(largest)  # ends at the small tensor before it


def test_equal_blocks_have_regions_of_one_kind() -> None:
    regions = find_regions(traced(3), BATCH * LENGTH * WIDTH * 4 * 4)
    kinds = [region.kind for region in regions]
    wide = {kind for region, kind in zip(regions, kinds, strict=True) if aten.gelu.default in targets(region)}
    scores = {
        kind for region, kind in zip(regions, kinds, strict=True) if aten._softmax.default in targets(region)
    }
    assert len(wide) == len(scores) == 1
    assert wide != scores
    assert all(kinds.count(kind) == 3 for kind in wide | scores)


def test_scores_of_attention_are_cut_by_heads_so_that_products_are_cut_too() -> None:
    found = find_regions(traced(1), 0)
    (region,) = [each for each in found if aten._softmax.default in targets(each)]
    assert aten.bmm.default in targets(region)
    assert region.rows == BATCH * 4


class Images(nn.Module):
    """A network of convolutions."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        layers = (nn.Conv2d(1, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float().view(BATCH, 1, 8, 8)).square().sum()


def test_images_are_cut_along_the_batch_but_not_through_a_batch_norm() -> None:
    (region, *_) = find_regions(traced(model=Images(nn.GroupNorm(2, 8))), 0)
    assert region.rows == BATCH
    assert {aten.convolution.default, aten.native_group_norm.default} <= targets(region)
    through = [targets(region) for region in find_regions(traced(model=Images(nn.BatchNorm2d(8))), 0)]
    assert not any("batch_norm" in str(target) for each in through for target in each)

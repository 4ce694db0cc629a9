"""Models that one graph can't hold train in pieces, or as plain PyTorch, with its bits and one warning."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from checkmate.torch import enable

ROOMY = 2**40
pytestmark = [  # warnings that Dynamo itself causes
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


class Experts(nn.Module):
    """Sorts tokens by their experts, each of which gets a slice whose size depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, expert = self.gate(x).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=3).tolist()
        slices = x[order].split(counts)
        y = torch.cat([run(part) for run, part in zip(self.experts, slices, strict=True)])
        return torch.zeros_like(y).index_copy(0, order, y) * weight[:, None]


class Contrast(nn.Module):
    """Momentum contrast: a second network follows the first, and a queue is written where a pointer says."""

    def __init__(self, *, assigns: bool) -> None:
        super().__init__()
        self.query, self.key = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2))
        self.key.requires_grad_(False)
        self.assigns = assigns
        self.register_buffer("queue", torch.randn(4, 12))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def keys(self, x: Tensor) -> Tensor:
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
            if self.assigns:
                k.data = k.data * 0.9 + q.data * 0.1
            else:
                k.data.mul_(0.9).add_(q.data, alpha=0.1)
        return self.key(x)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        start = int(self.pointer)
        self.queue[:, start : start + len(keys)] = keys.T
        self.pointer[0] = (start + len(keys)) % 12

    def forward(self, x: Tensor) -> Tensor:
        queries, keys = self.query(x), self.keys(x)
        scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.clone().detach()], 1)
        self.enqueue(keys)
        return functional.log_softmax(scores, 1)


class Rerun(torch.autograd.Function):
    """A checkpoint by hand: the backward pass runs a block again, and its backward pass inside."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, x: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.block(x).backward(gradient)
        return None, x.grad


class Checkpointed(nn.Module):
    """Checkpoints its blocks by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = Rerun.apply(block, x)
        return x


def _trained(make: Callable[[], nn.Module], *, planned: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    if planned:
        training = enable(model, ROOMY, optimizer=optimizer)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
    assert not planned or bool(training.plans) is not isinstance(model, Checkpointed)
    return model.state_dict()


@pytest.mark.parametrize(
    "make",
    [Experts, lambda: Contrast(assigns=True), lambda: Contrast(assigns=False), Checkpointed],
    ids=["experts", "assigned", "in place", "by hand"],
)
def test_what_is_no_one_graph_trains_as_before_with_one_warning(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    plain = _trained(make, planned=False)
    with caplog.at_level(logging.WARNING, "checkmate_torch"):
        ours = _trained(make, planned=True)
    assert all(torch.equal(x, ours[name]) for name, x in plain.items())
    (warning,) = caplog.records
    assert "can't be captured as one graph" in warning.getMessage()


class ChunkedLoss(torch.autograd.Function):
    """Scores of a few rows at a time, written into a part of one buffer, which breaks the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        buffer, sums = torch.empty(4, 8), torch.empty(len(x))
        for start in range(0, len(x), 4):
            rows = x[start : start + 4]
            torch.mm(rows, weight.T, out=buffer[: len(rows), :6])
            _sum(buffer[: len(rows), :6], sums[start : start + 4])
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        scores = gradient[:, None] * (x @ weight.T).softmax(1)
        return scores @ weight, scores.T @ x


def _sum(scores: Tensor, sums: Tensor) -> None:
    sums.copy_(scores.logsumexp(1))


class Scored(nn.Module):
    """Ends in a loss in chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.weight = nn.Parameter(torch.randn(6, 8))

    def forward(self, x: Tensor) -> Tensor:
        return ChunkedLoss.apply(self.body(x), self.weight).mean()


def test_pieces_around_a_loss_in_chunks_take_every_length() -> None:
    torch.manual_seed(0)
    model = Scored()
    plain = copy.deepcopy(model)
    training = enable(model, ROOMY)
    plans = []
    for length in (19, 17, 13, 18, 11, 14, 15):
        x = torch.randn(length, 8)
        for each in (model, plain):
            each.zero_grad()
            each(x).backward()
        assert all(
            torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)
        )
        plans.append(training.plans)
    assert plans[-1] == plans[3]

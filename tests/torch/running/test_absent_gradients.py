"""Heads in turn: a parameter that no loss of a step depends on has no gradient, as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from checkmate.torch import compile, enable

ROOMY = 2**40
_Way = Callable[[nn.Module, Optimizer], Callable[..., Any]]


class Heads(nn.Module):
    """One head is a view, one reads what two read, and batch norm returns statistics besides."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.BatchNorm1d(8))
        self.neck = nn.Linear(8, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
        self.breaks = breaks

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.body(x)
        if self.breaks:
            torch._dynamo.graph_break()  # noqa: TID251 - as users' code does
        z = self.neck(h)
        return self.heads[0](h).view(-1, 2, 2)[:3], self.heads[1](z), self.heads[2](h * z)


def _enabled(model: nn.Module, optimizer: Optimizer, **settings: Any) -> Callable[..., Any]:
    enable(model, ROOMY, optimizer=optimizer, **settings)
    return model


def _trained(
    way: _Way, optimizer: Callable[..., Optimizer], *, breaks: bool, losses: Sequence[tuple[int, ...]]
) -> list[Tensor | None]:
    """Parameters and last gradients; in each step the loss takes the heads with some numbers."""
    torch.manual_seed(0)
    model = Heads(breaks=breaks)
    updates = optimizer(model.parameters(), lr=0.1)
    call = way(model, updates)
    for heads in losses:
        updates.zero_grad()
        results = call(torch.randn(6, 8))
        sum(results[k].square().mean() for k in heads).backward()
        updates.step()
    return [x for p in model.parameters() for x in (p.detach(), p.grad)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's own, at a break
@pytest.mark.parametrize(
    ("way", "optimizer", "breaks"),
    [
        (_enabled, AdamW, False),
        (_enabled, partial(SGD, momentum=0.9), True),
        (lambda model, _: compile(model, ROOMY), partial(SGD, momentum=0.9), False),
        (
            lambda model, _: torch.compile(model, backend="checkmate", options={"budget": ROOMY}),
            AdamW,
            False,
        ),
    ],
    ids=["enable", "pieces", "compile", "backend"],
)
def test_heads_in_turn(way: _Way, optimizer: Callable[..., Optimizer], breaks: bool) -> None:
    losses = [(0,), (1,), (2,), (0, 1, 2), (0, 2), (1,), (1,)]
    train = partial(_trained, optimizer=optimizer, breaks=breaks, losses=losses)
    for plain, ours in zip(train(lambda model, _: model), train(way), strict=True):
        assert (plain is None) == (ours is None)
        assert plain is None or torch.equal(plain, ours)


def test_recomputed_heads_in_turn(forgetful: Any) -> None:
    train = partial(_trained, optimizer=AdamW, breaks=False, losses=[(0,), (2,), (1, 2)])
    for plain, ours in zip(
        train(lambda model, _: model), train(partial(_enabled, solver=forgetful)), strict=True
    ):
        assert (plain is None) == (ours is None)
        assert plain is None or torch.equal(plain, ours)


class Rooted(nn.Module):
    """The gradient of the second head at 0 is not finite, even of a gradient that is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return h, (h - h).sqrt()


def test_a_head_without_a_loss_does_no_harm() -> None:
    model = Rooted()
    enable(model, ROOMY)
    model(torch.ones(2, 4))[0].sum().backward()
    assert torch.equal(model.body.weight.grad, torch.full((4, 4), 2.0))

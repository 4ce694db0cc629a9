"""What is captured: a model that computes its own loss is charged for no other, whatever else it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from checkmate_torch import enable, trace


class Cache:
    """Keeps what layers put into it, as caches of keys and values do."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []


class Output:
    """What a model returns, with names."""

    def __init__(self, cache: Cache, logits: Tensor, loss: Tensor) -> None:
        self.cache, self.logits, self.loss = cache, logits, loss


class Caching(nn.Module):
    """Returns a loss beside larger outputs, some of them in an object made before the loss."""

    def __init__(self, returned: Callable[[Tensor, Tensor, Cache], Any]) -> None:
        super().__init__()
        self.inner, self.outer, self.returned = nn.Linear(8, 32), nn.Linear(32, 64), returned

    def forward(self, x: Tensor) -> Any:
        cache = Cache()
        y = self.inner(x).tanh()
        cache.kept.append(y)
        logits = self.outer(y)
        return self.returned(logits.square().mean(), logits, cache)


@pytest.mark.parametrize(
    ("returned", "loss_of"),
    [
        (lambda loss, y, cache: {"logits": y, "cache": cache, "loss": loss}, lambda out: out["loss"]),
        (lambda loss, y, cache: (loss, y, cache), lambda out: out[0]),
        (lambda loss, y, cache: Output(cache=cache, logits=y, loss=loss), lambda out: out.loss),
        (lambda loss, y, cache: [loss, cache], lambda out: out[0]),
        (lambda loss, _y, _cache: loss, lambda out: out),
    ],
    ids=["item", "tuple", "attribute", "list", "tensor"],
)
def test_a_model_that_returns_its_loss_is_charged_for_no_other(
    returned: Callable[[Tensor, Tensor, Cache], Any], loss_of: Callable[[Any], Tensor]
) -> None:
    model = Caching(returned)
    x = torch.randn(16, 8)
    loss_of(model(x)).backward()
    plain = [p.grad for p in model.parameters()]
    model.zero_grad()

    training = enable(model, "100%")
    output = model(x)
    loss_of(output).backward()

    traced = trace(model, x).graph
    assert all(op.workspace == 0 for op in traced.ops if op.name == "loss")
    assert type(output) is type(returned(x, x, Cache()))
    assert training.plans[0].loss_guess == 0
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain, strict=True))


@pytest.mark.parametrize("returned", [lambda loss, y, cache: y, lambda loss, y, cache: (y, loss)])
def test_any_other_output_leaves_room_for_a_loss_outside(returned: Callable[..., Any]) -> None:
    model = Caching(returned)
    training = enable(model, "100%")
    model(torch.randn(16, 8))

    assert training.plans[0].loss_guess > 0

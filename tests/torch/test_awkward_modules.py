"""Modules that make tracing hard: each trains the same, to the bit, at the least budget."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import checkmate
from checkmate_torch import compile


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 16),
    )


class Tied(nn.Module):
    """A tied weight, a dict of outputs, an unused and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = perceptron()
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(30, 30)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        ids = x.abs().mul(10).long().clamp(max=49)
        return {
            "logits": self.head(self.frozen(self.body(self.embed(ids)))),
            "more": [self.embed(ids).mean()],
        }


class Squared(torch.autograd.Function):
    """Saves a tensor for backward, and puts another on ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.double = 2 * x
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (ctx.double + 0 * x)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = perceptron(), perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Squared.apply(self.a(x)).tanh())


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.body(x).float()


class UserCheckpoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(perceptron(), nn.Dropout(0.2)), perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(checkpoint(self.a, x, use_reentrant=False))


class InPlaceInput(nn.Module):
    """Changes its input, which the caller sees afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return self.body(functional.gelu(x + 1))


class Counted(torch.autograd.Function):
    """Adds up its gradients in a buffer: a side effect of the backward pass."""

    @staticmethod
    def forward(ctx, x, total):
        ctx.save_for_backward(x)
        ctx.total = total
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        ctx.total.add_(grad.sum(0))
        return grad * ctx.saved_tensors[0].cos(), None


class WritesInBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = perceptron(), perceptron()
        self.register_buffer("total", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Counted.apply(self.a(x), self.total))


class NormThenOverwrite(nn.Module):
    """A batch norm reads its input before that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, affine=False)
        self.body = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x.mul_(0.5)
        return self.body(functional.gelu(h))


class ReadsStatistics(nn.Module):
    """Uses the running variance that its batch norm has just updated."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = perceptron(), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.body(x)).relu()
        return (h * self.norm.running_var.clone().sin()).tanh()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.body(x)) * (1 + 2j)).tanh()


AWKWARD: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "custom function": Custom,
    "autocast": Autocast,
    "checkpoint inside": UserCheckpoint,
    "in-place input": InPlaceInput,
    "complex": Complex,
    "writes in backward": WritesInBackward,
    "norm, then overwrite": NormThenOverwrite,
    "reads statistics": ReadsStatistics,
    "batch norm without statistics": lambda: nn.Sequential(
        perceptron(), nn.BatchNorm1d(16, track_running_stats=False), perceptron()
    ),
    "eval": lambda: nn.Sequential(perceptron(), nn.BatchNorm1d(16), nn.Dropout(0.5), perceptron()).eval(),
}


def loss_of(output: object) -> torch.Tensor:
    if isinstance(output, dict):
        return output["logits"].square().mean() + output["more"][0]
    return output.square().mean()


def training(module: nn.Module) -> list[torch.Tensor]:
    seen = []
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(64, 16)
        module.zero_grad()
        loss = loss_of(module(x))
        loss.backward()
        seen += [x, loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    return [*seen, *module.buffers(), torch.get_rng_state()]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does that
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_models_train_the_same_at_the_least_budget(name: str) -> None:
    torch.manual_seed(3)
    module = AWKWARD[name]()
    reference = training(copy.deepcopy(module))
    with pytest.raises(checkmate.InfeasibleBudgetError) as caught:
        compile(copy.deepcopy(module), 1)(torch.randn(64, 16))
    compiled = compile(module, caught.value.minimum)
    for mine, theirs in zip(training(compiled), reference, strict=True):
        assert torch.equal(mine, theirs)
    assert len(compiled.plans) == 1


def test_unused_parameters_and_old_gradients_count() -> None:
    module, x = Tied(), torch.randn(64, 16)
    compiled = compile(module, "100%")
    loss_of(compiled(x)).backward()
    parameters = sum(p.nbytes for p in module.parameters())
    assert compiled.plans[0].traced.graph.base_size >= parameters + x.nbytes
    again = compile(module, "100%")
    loss_of(again(x)).backward()
    gradients = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
    grown = again.plans[0].traced.graph.base_size - compiled.plans[0].traced.graph.base_size
    assert grown == gradients

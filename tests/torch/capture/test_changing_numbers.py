"""A number that changes from step to step needs no new plan, and gives eager PyTorch's results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from checkmate_torch import PlannedTraining, enable
from checkmate_torch.capture.changing_numbers import _cross_entropy, _drop

Head = Callable[["Annealed", torch.Tensor], torch.Tensor]
ON = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


class Annealed(nn.Module):
    """Layers whose outputs go into a head with a number, an argument or else an attribute."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.body = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(16, 16), nn.GELU())))
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout()
        self.loss = nn.CrossEntropyLoss()
        self.head, self.number = head, 0.5

    def forward(self, x: torch.Tensor, number: float | None = None) -> torch.Tensor:
        if number is not None:
            self.number = number
        return self.head(self, self.body(x)).square().mean()


def module(of: Annealed, x: torch.Tensor) -> torch.Tensor:
    of.drop.p = of.number
    return of.drop(x) + of.drop(x)


def stochastic_depth(of: Annealed, x: torch.Tensor) -> torch.Tensor:
    return x * x.new_empty(len(x), 1).bernoulli_(1 - of.number / 2).div_(1 - of.number / 2)


def momentum(of: Annealed, x: torch.Tensor) -> torch.Tensor:
    of.norm.momentum = of.number
    return of.norm(x)


def momentum_in_evaluation(of: Annealed, x: torch.Tensor) -> torch.Tensor:
    return momentum(of.eval(), x) * of.number


def smoothing(of: Annealed, x: torch.Tensor) -> torch.Tensor:
    of.loss.label_smoothing = of.number
    return of.loss(x, x.argmax(1))


HEADS: dict[str, Head] = {
    "dropout": module,
    "in place": lambda of, x: functional.dropout(x + 1, of.number, inplace=True),
    "evaluation": lambda of, x: functional.dropout(x, p=of.number, training=False) * of.number,
    "stochastic depth": stochastic_depth,
    "momentum": momentum,
    "momentum in evaluation": momentum_in_evaluation,
    "label smoothing": smoothing,
    "temperature": lambda of, x: (x / of.number).softmax(-1),
    "weight of a loss": lambda of, x: x.sum(1) + of.number * x.abs().mean() + (1 - of.number) * x.mean(),
}


def annealed(head: Head, budget: str, *, as_argument: bool, numbers: list[float]) -> PlannedTraining:
    """Training of a model in which the number changes in each step, after a comparison with eager PyTorch."""
    torch.manual_seed(0)
    models = [Annealed(head)]
    models.append(copy.deepcopy(models[0]))
    training = enable(models[1], budget, cost_model="flops", time_limit=1.0, strict=True)
    for step, number in enumerate(numbers):
        results = []
        for model in models:
            torch.manual_seed(step)
            model.zero_grad()
            if not as_argument:
                model.number = number
            loss = model(torch.randn(64, 16), *([number] if as_argument else []))
            loss.backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            results.append([loss.detach(), *gradients, torch.get_rng_state()])
        torch.testing.assert_close(*(list(model.buffers()) for model in models))
        for mine, theirs in zip(*results, strict=True):
            assert torch.equal(mine, theirs)
    return training


@pytest.mark.parametrize(
    ("head", "as_argument"),
    [*((name, False) for name in HEADS), ("dropout", True), ("weight of a loss", True)],
)
def test_it_needs_no_new_plan_after_the_second(head: str, as_argument: bool) -> None:
    numbers = [0.5, 0.45, 1.0, 0.1]
    assert len(annealed(HEADS[head], "100%", as_argument=as_argument, numbers=numbers).plans) == 2


def test_a_dropout_is_replayed_and_may_stop_and_drop_all() -> None:
    def deep(of: Annealed, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = functional.dropout(x.tanh(), of.number).sigmoid()
        return x

    training = annealed(deep, "60%", as_argument=False, numbers=[0.5, 0.45, 0.0, 1.0, 0.45])
    _, plan = training.plans
    again = {plan.traced.graph.ops[i].name for i in (plan.solution.timeline.runs > 1).nonzero()[0]}
    assert any(name.startswith("dropout") for name in again)


def test_a_number_that_can_only_be_a_constant_leaves_those_of_other_models_alone() -> None:
    numbers = [0.5, 0.4, 0.3]
    clamped = annealed(lambda of, x: x.clamp(-of.number), "100%", as_argument=False, numbers=numbers)
    assert len(clamped.plans) == 3
    assert len(annealed(HEADS["temperature"], "100%", as_argument=False, numbers=numbers).plans) == 2


@pytest.mark.parametrize("device", ON)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.45, 1.0])
def test_dropout_of_a_number_is_dropout(p: float, dtype: torch.dtype, device: str) -> None:
    results = []
    for drop in (
        lambda x: functional.dropout(x, p),
        lambda x: _drop(x, torch.tensor(p, dtype=torch.float64))[0],
    ):
        torch.manual_seed(3)
        x = torch.randn(64, 33).to(device, dtype).t().requires_grad_()
        y = drop(x)
        y.backward(y.detach().cos())
        assert x.grad is not None
        random = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
        results.append([y.signbit(), y, x.grad, random])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(64, 10), (10,), (8, 10, 5, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_label_smoothing_of_a_number_is_label_smoothing(
    shape: tuple[int, ...], reduction: str, dtype: torch.dtype, weighted: bool, autocast: bool
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(dtype), torch.rand(10).to(dtype) if weighted else None
    classes = min(1, len(shape) - 1)
    for target in (x.cos().argmax(classes), x.cos().softmax(classes)):
        settings: Any = {"reduction": reduction, "label_smoothing": 0.45}
        if not target.is_floating_point():
            settings["ignore_index"] = 3
        results = []
        for loss in (functional.cross_entropy, _cross_entropy):
            given = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                found = loss(given, target, weight, **settings)
            results.append([found, *torch.autograd.grad(found.sum(), given)])
        for mine, theirs in zip(*results, strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


def test_a_probability_beyond_one_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="expects p to be in"):
        _drop(torch.ones(4), torch.tensor(1.5))

"""Whole steps planned without running: the same graph as with memory, for models that would not fit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

import checkmate
from checkmate_torch import (
    UnsupportedModelError,
    bind,
    compile_step,
    memory_meter,
    plan,
    plan_step,
    trace_step,
)
from zoo.small_torch import perceptron

network = partial(perceptron, 16, 64, 16)
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class Head(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 1)

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        return self.last(model(x)).square().mean()


@pytest.mark.parametrize("settings", [{}, {"max_norm": 1.0}, {"accumulate": 2}])
def test_with_and_without_memory_the_graph_and_its_account_are_the_same(settings: dict[str, object]) -> None:
    def traced(model: nn.Module, head: nn.Module, x: Tensor) -> checkmate.framework.TracedStep:
        optimizer = optim.Adafactor([*model.parameters(), *head.parameters()], lr=0.1)
        return trace_step(model, head, optimizer, (x,), cost_model="flops", **settings)

    real = traced(network(), Head(), X)
    with torch.device("meta"):
        without_memory = network(), Head(), torch.empty(8, 16)
    shown = traced(*without_memory)
    assert shown.graph == real.graph
    assert shown.account == real.account
    with pytest.raises(UnsupportedModelError, match="nothing to run"):
        bind(shown, checkmate.solve(shown.graph, "100%").schedule)


def test_a_plan_without_running_is_that_of_the_compiled_step() -> None:
    module = network()
    optimizer = optim.AdamW(module.parameters())
    loss = lambda model, x: model(x).square().mean()  # noqa: E731
    compiled = compile_step(module, loss, optimizer, "100%", cost_model="flops")
    compiled(X)
    assert not plan_step(module, loss, optimizer, (X,), 0.5, cost_model="flops", throw=False).schedule
    solution = plan_step(module, loss, optimizer, (X,), "100%", cost_model="flops", workspaces=True)
    assert solution.peak == compiled.plans[0].solution.peak


def test_where_parameters_are_everything_a_whole_step_needs_no_room_for_all_gradients() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(2**12, 2**12, bias=False) for _ in range(8)))
        x = torch.empty(1, 2**12)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    parameters = sum(p.nbytes for p in model.parameters())
    apart = plan(model, x, "100%", loss=lambda y: y.square().mean(), cost_model="flops")
    whole = plan_step(
        model, lambda model, x: model(x).square().mean(), optimizer, (x,), "100%", cost_model="flops"
    )
    assert apart.peak > 2 * parameters
    assert whole.peak < 1.3 * parameters


class Residual(nn.Module):
    """A block of a transformer in small: a norm made of simple ops, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(128, 128), nn.Parameter(torch.ones(128))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * self.weight).relu()


def test_updates_do_not_wait_for_the_end_of_a_residual_stream() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Residual() for _ in range(8))), torch.randn(2, 128)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    traced = trace_step(
        model,
        lambda model, x: model(x).square().mean(),
        optimizer,
        (x,),
        cost_model="flops",
        workspaces=True,
    )
    step = bind(traced, checkmate.solve(traced.graph, "100%").schedule)
    step(x)
    with memory_meter(model, optimizer, x) as meter:
        step(x)
    parameters = sum(p.nbytes for p in model.parameters())
    assert meter.peak == pytest.approx(step.plans[0].solution.peak, rel=0.01)
    assert meter.peak < 1.5 * parameters

"""The budget "auto", and the optimizer's state, which is predicted before the first step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import checkmate
from checkmate.framework.decide import HEADROOM, auto_budget
from checkmate.report import Kind
from checkmate_torch import compile, plan
from checkmate_torch.costs.meter import resident_bytes
from checkmate_torch.ops.device import obtainable_bytes
from checkmate_torch.optimizer.meta_step import optimizer_bytes

KIB = 1024


def network() -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8))
    module[0].bias.requires_grad_(False)
    return module


class Forwarding(torch.optim.Optimizer):
    """A wrapper whose state is that of the optimizer inside, as accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.defaults = optimizer, optimizer.defaults

    state = property(lambda self: self.optimizer.state, lambda self, x: setattr(self.optimizer, "state", x))
    param_groups = property(
        lambda self: self.optimizer.param_groups, lambda self, x: setattr(self.optimizer, "param_groups", x)
    )

    def step(self, closure: object = None) -> object:
        return self.optimizer.step(closure)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p),
    "amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "fused": lambda p: torch.optim.Adam(p, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "centered": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "forwarding": lambda p: Forwarding(torch.optim.Adam(p)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_predicted_to_the_byte_and_nothing_is_changed(name: str) -> None:
    module = network()
    optimizer = OPTIMIZERS[name](module.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # replaces optimizer.step
    before = copy.deepcopy(module.state_dict())
    predicted = optimizer_bytes(optimizer)
    assert resident_bytes(optimizer) == (predicted if name == "adagrad" else 0)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    module(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    assert resident_bytes(optimizer) == predicted == optimizer_bytes(optimizer)


def test_an_optimizer_that_needs_a_closure_is_refused_with_the_way_out() -> None:
    with pytest.raises(checkmate.BudgetError, match=r"LBFGS.*closure.*pass reserve="):
        compile(network(), "1MiB", optimizer=torch.optim.LBFGS(network().parameters()))


def test_the_optimizer_is_counted_once_and_is_in_the_account() -> None:
    module, x = network(), torch.randn(4, 16)
    optimizer = torch.optim.Adam(module.parameters())
    alone, together = plan(module, x, "100%"), plan(module, x, "100%", optimizer=optimizer)
    compiled = compile(module, "100%", optimizer=optimizer)
    compiled(x).sum().backward()
    optimizer.step()
    state = resident_bytes(optimizer)
    assert together.peak - alone.peak == state
    assert compiled.plans[0].account.fixed[Kind.OPTIMIZER] == state


def test_a_device_of_unknown_memory_is_an_error_with_the_way_out() -> None:
    with pytest.raises(checkmate.BudgetError, match="in the place of 'auto'"):
        obtainable_bytes(torch.device("meta"))


def test_auto_is_the_bytes_held_and_most_of_those_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate_torch.planning.decide.obtainable_bytes", lambda device: 1000 * KIB)
    assert auto_budget(24 * KIB, 1000 * KIB) == pytest.approx((24 + 1000 * (1 - HEADROOM)) * KIB, abs=1)
    module, x = network(), torch.randn(4, 16)
    compiled = compile(module, "auto")
    compiled(x)
    held = resident_bytes(module, x)
    assert compiled.plans[0].solution.problem.budget == auto_budget(held, 1000 * KIB)
    assert plan(module, x, "auto").problem.budget == auto_budget(held, 1000 * KIB)


def test_a_budget_below_the_parameters_names_both_numbers() -> None:
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    with pytest.raises(checkmate.InfeasibleBudgetError) as caught:
        compile(module, "40KiB", reserve="2KiB")(torch.randn(4, 64))
    message = str(caught.value)
    assert "a budget of 40960 bytes" in message
    assert "67.00 KiB are held before any activation" in message
    assert "gradients of parameters 32.00 KiB" in message
    assert caught.value.minimum is not None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_auto_on_cuda_counts_what_the_allocator_holds() -> None:
    device = torch.device("cuda")
    before = obtainable_bytes(device)
    held = torch.empty(2**26, dtype=torch.uint8, device=device)
    assert before - obtainable_bytes(device) >= held.nbytes
    del held
    assert abs(obtainable_bytes(device) - before) < 2**23

"""What a step holds besides its graph."""

from __future__ import annotations

import torch
from torch.func import functional_call

from checkmate.report import Kind
from checkmate_torch import enable, memory_meter
from zoo.small_torch import perceptron


def test_parameters_that_functional_weights_replace_are_held_and_so_are_their_gradients() -> None:
    """Inner steps of meta-learning: the gradients of earlier tasks wait for the optimizer."""
    module, x = perceptron(32, 32, 32, 32, 32), torch.randn(64, 32)
    training = enable(module, "100%", cost_model="flops", loss=lambda y: y.square().mean())
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    weights = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}

    def inner_step() -> None:
        loss = functional_call(module, weights, (x,)).square().mean()
        torch.autograd.grad(loss, list(weights.values()))

    inner_step()
    with memory_meter(module, weights, x) as meter:
        inner_step()
    (plan,) = training.plans
    own = sum(p.nbytes for p in module.parameters())
    assert plan.account.fixed[Kind.PARAMETERS] == plan.account.fixed[Kind.EARLIER_GRADIENTS] == own
    assert meter.peak <= plan.solution.peak

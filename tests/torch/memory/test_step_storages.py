"""A whole step of parameters that share memory: views of one storage, and the same numbers twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from checkmate_torch import UnsupportedModelError, compile_step
from zoo.small_torch import perceptron


def test_parameters_that_share_a_storage_are_updated_one_after_the_other() -> None:
    """As the weights of recurrent networks do on a GPU, and those of optimizers with flat buffers."""

    def flat() -> nn.Module:
        model = perceptron(64, 64, 64, 1)
        numbers = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(numbers, model.parameters())
        return model

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    x = torch.randn(512, 64)
    plain, planned = flat(), flat()
    optimizers = [optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (plain, planned)]
    step = compile_step(planned, loss_of, optimizers[1], "72%", cost_model="flops")
    for _ in range(3):
        loss = loss_of(plain, x)
        loss.backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        assert torch.equal(step(x), loss)
    assert all(map(torch.equal, planned.parameters(), plain.parameters()))
    assert step.plans[0].solution.overhead > 0


def test_parameters_with_numbers_in_common_are_refused() -> None:
    """An update of the one would read what that of the other has written."""
    model = perceptron(8, 8, 8, 1)
    model[2].weight = nn.Parameter(model[0].weight.data)
    step = compile_step(model, lambda m, x: m(x).sum(), optim.SGD(model.parameters(), lr=0.1), "1MiB")
    with pytest.raises(UnsupportedModelError, match="numbers in memory in common"):
        step(torch.ones(4, 8))

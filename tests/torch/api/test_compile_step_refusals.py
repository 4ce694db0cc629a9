"""``compile_step`` refuses with the way out, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn, optim

import checkmate
from checkmate_torch import UnsupportedModelError, UnsupportedOptimizerError
from checkmate_torch.api.compile_step import compile_step
from zoo.small_torch import perceptron

BATCH = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


network = partial(perceptron, 8, 32, 4)


def mean_square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


WRONG: dict[str, tuple[Callable[..., object], str]] = {
    "no scalar": (lambda model, x: model(x), r"shapes \(16, 4\).*\.mean\(\)"),
    "no tensor": (lambda model, x: 3.0, "returned a float"),
    "more than a loss": (lambda model, x: (model(x).mean(), x), "returned a tuple; say has_aux=True"),
    "no gradient": (lambda model, x: model(x).detach().mean(), "nothing to train"),
    "no parameter": (lambda model, x: x.mean(), "nothing to train"),
    "graph break": (
        lambda model, x: model(x).mean() * (2 if x.sum() > 0 else 1),
        r"one graph: .*test_compile_step_refusals\.py",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_loss_is_refused_and_changes_nothing(kind: str) -> None:
    loss_fn, message = WRONG[kind]
    module = network()
    before = [p.detach().clone() for p in module.parameters()]
    step = compile_step(module, loss_fn, optim.SGD(module.parameters(), lr=0.1), "100%")
    with pytest.raises(UnsupportedModelError, match=message):
        step(BATCH)
    torch.testing.assert_close(list(module.parameters()), before, rtol=0, atol=0)


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.MSELoss()], ids=["function", "module"])
def test_a_loss_function_of_pytorch_is_refused_at_once_with_the_way_to_call_it(
    loss: Callable[..., object],
) -> None:
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"(MSELoss|mse_loss), which .*lambda model, x, y: loss"):
        compile_step(model, loss, optimizer, "100%")
    compile_step(model, lambda model, x, y: loss(model(x), y), optimizer, "100%")


def test_an_optimizer_for_another_model_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedOptimizerError, match=r"\(32, 8\), is none of the model's"):
        compile_step(network(), mean_square, optim.SGD(network().parameters(), lr=0.1), "100%")
    with pytest.raises(checkmate.BudgetError):
        compile_step(network(), mean_square, optim.SGD(network().parameters(), lr=0.1), "0%")


def test_an_optimizer_whose_parameters_the_loss_does_not_read_is_refused() -> None:
    module = network()
    module.unread = nn.Linear(2, 2)
    step = compile_step(
        module, lambda model, x: model[:3](x).mean(), optim.SGD(module.unread.parameters(), lr=0.1), "100%"
    )
    with pytest.raises(UnsupportedModelError, match=r"that the optimizer holds: there is nothing to train"):
        step(BATCH)

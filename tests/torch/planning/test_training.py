"""A call that fails raises the error that plain PyTorch would raise, and changes no later plan."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from checkmate_torch import enable


class Checked(nn.Module):
    """Refuses inputs of more than two dimensions in its own words."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() > 2:
            raise ValueError("one batch dimension, please")
        return self.linear(x)


FAULTS: dict[str, Callable[[Any], object]] = {
    "shape": lambda model: model(torch.ones(3, 5)),
    "type": lambda model: model(torch.ones(3, 4, dtype=torch.int64)),
    "argument": lambda model: model(torch.ones(3, 4), 1),
    "missing": lambda model: model(),
    "own": lambda model: model(torch.ones(3, 3, 4)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("trained", [False, True], ids=["first", "later"])
def test_an_error_of_the_model_is_raised_as_it_is(
    fault: str, trained: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = Checked()
    with pytest.raises(Exception) as plain:  # noqa: PT011 - whatever it is
        FAULTS[fault](model)
    training = enable(model, "100%")
    if trained:
        model(torch.ones(3, 4)).sum().backward()

    with caplog.at_level(logging.WARNING), pytest.raises(type(plain.value)) as raised:
        FAULTS[fault](model)

    assert str(raised.value) == str(plain.value)
    assert raised.value.__cause__ is raised.value.__context__ is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with caplog.at_level(logging.WARNING):
        model(torch.ones(3, 4)).sum().backward()
    assert training.plans
    assert "pieces" not in caplog.text


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo hides it, but raises first
def test_a_backward_hook_is_named_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())])
    x = torch.randn(256, 16, requires_grad=True)
    enable(model, "100%", loss_bytes=0)
    hook = model.register_full_backward_hook(lambda *_: None)
    with caplog.at_level(logging.WARNING):
        model(x).sum().backward()
    assert "nn.Sequential(model)" in caplog.text

    hook.remove()
    seen: list[object] = []
    outer = nn.Sequential(model)
    outer.register_full_backward_hook(lambda *_: seen.append(1))
    training = enable(model, "70%", loss_bytes=0)
    outer(x).sum().backward()
    assert seen
    assert len(training.plans) == 1


def test_plans_that_are_taken_for_the_model_say_what_enable_does() -> None:
    model = Checked()
    training = enable(model, "100%")
    with pytest.raises(AttributeError, match="enable changes the model in place: keep the model"):
        training.train()  # type: ignore[attr-defined]
    assert not hasattr(training, "parameters")

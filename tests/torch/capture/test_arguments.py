"""Arguments of a wrong type are refused before anything is traced, in words that name the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from checkmate import PluginError
from checkmate_torch import compile, compile_step, enable, plan, trace

MODEL = nn.Linear(2, 1)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)
X = torch.ones(3, 2)
WRONG: list[Any] = [lambda x: x, nn.Linear, "gpt2", None]


def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    return loss


@pytest.mark.parametrize("model", WRONG, ids=["function", "class", "name", "none"])
@pytest.mark.parametrize(
    "door",
    [
        lambda model: compile(model, "60%"),
        lambda model: enable(model, "60%"),
        lambda model: compile_step(model, loss_fn, SGD, "60%"),
        lambda model: plan(model, X, "60%"),
        lambda model: trace(model, X),
    ],
    ids=["compile", "enable", "compile_step", "plan", "trace"],
)
def test_a_model_must_be_a_module(door: Callable[[object], object], model: object) -> None:
    with pytest.raises(TypeError, match=r"^model is .*, must be a (torch\.nn\.Module|module): "):
        door(model)


@pytest.mark.parametrize("optimizer", ["adam", torch.optim.Adam, 3])
def test_an_optimizer_must_be_one(optimizer: Any) -> None:
    for door in (
        lambda: compile(MODEL, "60%", optimizer=optimizer),
        lambda: plan(MODEL, X, "60%", optimizer=optimizer),
        lambda: compile_step(MODEL, loss_fn, optimizer, "60%"),
    ):
        with pytest.raises(TypeError, match=r"optimizer=torch\.optim\.Adam\(model\.parameters\(\)\)"):
            door()


@pytest.mark.parametrize("max_plans", [0, "3", 2.5, True])
def test_max_plans_must_be_a_positive_whole_number(max_plans: Any) -> None:
    for door in (
        lambda: enable(MODEL, "60%", max_plans=max_plans),
        lambda: compile_step(MODEL, loss_fn, SGD, "60%", max_plans=max_plans),
    ):
        with pytest.raises(ValueError, match=f"max_plans is {max_plans!r}, must be a whole number"):
            door()


@pytest.mark.parametrize("loss", ["mse", nn.MSELoss])
def test_a_loss_must_be_a_function(loss: Any) -> None:
    with pytest.raises(TypeError, match="loss=lambda output: "):
        plan(MODEL, X, "60%", loss=loss)
    with pytest.raises(TypeError, match="loss_fn=lambda model, x, y: "):
        compile_step(MODEL, loss, SGD, "60%")


@pytest.mark.parametrize("door", [compile, enable])
def test_a_setting_that_does_not_exist_is_the_first_complaint(door: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="did you mean 'time_limit'"):
        door(MODEL, 60, optimizer="adam", process_group=3, tim_limit=1)


def test_the_backend_too_names_it_before_a_missing_budget() -> None:
    torch.compiler.reset()  # other tests compile linear layers, too, up to Dynamo's limit
    with pytest.raises(Exception, match="there is no setting 'bugdet': did you mean 'budget'"):
        torch.compile(nn.Linear(2, 1), backend="checkmate", options={"bugdet": "60%"})(X)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
@pytest.mark.parametrize("door", [compile, enable])
def test_a_loss_that_needs_a_target_is_refused(door: Callable[..., object], loss: Any) -> None:
    with pytest.raises(TypeError, match=r"which needs a target too.*loss=lambda output: "):
        door(MODEL, "60%", loss=loss)


@pytest.mark.parametrize("door", [compile, enable])
def test_an_optimizer_of_another_model_is_refused(door: Callable[..., object]) -> None:
    model = nn.Linear(2, 1)
    of_two = torch.optim.SGD([*nn.Linear(2, 1).parameters(), *model.parameters()], lr=0.1)
    door(model, "60%", optimizer=of_two)
    with pytest.raises(ValueError, match="holds no parameter of this model"):
        door(nn.Linear(2, 1), "60%", optimizer=of_two)


@pytest.mark.parametrize("door", [compile, enable])
def test_a_misspelt_cost_model_or_solver_is_refused_at_once(
    door: Callable[..., object],
) -> None:
    with pytest.raises(PluginError, match=r"no cost model 'flopss'.*'flops'"):
        door(MODEL, "60%", cost_model="flopss")
    with pytest.raises(PluginError, match="did you mean 'min-cut'"):
        door(MODEL, "60%", solver="mincut")

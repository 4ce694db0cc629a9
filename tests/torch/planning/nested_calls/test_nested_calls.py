"""Steps of several calls: counted once, decided once, within one budget, with the bits of plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from checkmate import Problem, Solution, solve
from checkmate_torch import enable, memory_meter

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's own
WIDTH = 32


class Encoder(nn.Module):
    """The same layers at each place, then the mean over all places."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh())]
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), *pairs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(1)


class Decoder(nn.Module):
    """The next state from all states so far."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states: Tensor) -> Tensor:
        return self.outer(self.inner(states).sigmoid().tanh()).sin().mean(1, keepdim=True)


def siamese(models: list[nn.Module], _: int) -> Tensor:
    (model,) = models
    return (model(torch.randn(8, 256, 3)) - model(torch.randn(8, 256, 3))).square().mean()


def multi_crop(models: list[nn.Module], _: int) -> Tensor:
    (model,) = models
    return (model(torch.randn(4, 1024, 3)).mean() - model(torch.randn(12, 256, 3)).mean()).square()


def adversaries(models: list[nn.Module], _: int) -> Tensor:
    first, second = models
    made = first(torch.randn(8, 256, 3))[:, None, :3].expand(8, 256, 3)
    return second(made).mean() - second(torch.randn(8, 256, 3)).square().mean()


def train(models: list[nn.Module], loss: Callable[[list[nn.Module], int], Tensor], step: int) -> None:
    torch.manual_seed(step)
    for model in models:
        model.zero_grad()
    loss(models, step).backward()
    with torch.no_grad():
        for model in models:
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad


def plain_peak(models: list[nn.Module], loss: Callable[[list[nn.Module], int], Tensor], step: int) -> int:
    models = copy.deepcopy(models)
    train(models, loss, step)
    with memory_meter(models) as meter:
        train(models, loss, step)
    return int(meter.peak)


@pytest.mark.parametrize(
    ("loss", "n_models", "share"), [(siamese, 1, 0.6), (multi_crop, 1, 0.7), (adversaries, 2, 0.7)]
)
def test_calls_are_counted_in_a_step_and_decided_before_the_next(
    loss: Callable[[list[nn.Module], int], Tensor], n_models: int, share: float
) -> None:
    torch.manual_seed(0)
    plain: list[nn.Module] = [Encoder() for _ in range(n_models)]
    models = copy.deepcopy(plain)
    budget = int(share * plain_peak(plain, loss, 0))
    trainings = [
        enable(model, budget, loss_bytes=0, cost_model="flops", workspaces=False) for model in models
    ]
    made: list[list[object]] = []
    for step in range(5):
        with memory_meter(models) as meter:
            train(models, loss, step)
        train(plain, loss, step)
        made.append([plan for training in trainings for plan in training.plans])
        assert meter.peak <= budget or step == 0
    assert made[0] != made[1] == made[2] == made[3] == made[4]
    for mine, theirs in zip(models, plain, strict=True):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
    assert "the others hold" in str(trainings[0].report())


def growing(models: list[nn.Module], _: int) -> Tensor:
    (model,) = models
    states = torch.ones(16, 1, WIDTH, dtype=torch.float64)
    for _ in range(6):
        states = torch.cat([states, model(states)], 1)
    return states.square().mean()


def test_inputs_that_grow_from_call_to_call_are_planned_in_three_steps() -> None:
    torch.manual_seed(0)
    plain: list[nn.Module] = [Decoder().double()]
    models = copy.deepcopy(plain)
    budget = int(0.7 * plain_peak(plain, growing, 0))
    training = enable(models[0], budget, loss_bytes=0, cost_model="flops", workspaces=False)
    plans = []
    for step in range(6):
        with memory_meter(models) as meter:
            train(models, growing, step)
        train(plain, growing, step)
        plans.append(training.plans)
        if step > 2:
            assert meter.peak <= budget
    assert plans[3:] == plans[2:-1]
    # Uses of a parameter are summed in each call first: the results are the same up to rounding.
    for mine, theirs in zip(models[0].parameters(), plain[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def several(models: list[nn.Module], n_calls: int) -> Tensor:
    (model,) = models
    return torch.stack([model(torch.randn(4, 256, 3)).mean() for _ in range(n_calls)]).sum().square()


def test_a_number_of_calls_that_changes_is_planned_for_a_few_times() -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [Encoder()]
    budget = int(0.7 * plain_peak(models, several, 3))
    training = enable(models[0], budget, loss_bytes=0, cost_model="flops", workspaces=False)
    plans: list[object] = []
    for n_calls in (1, 2, 3, 1, 4, 5, 6, 6, 2, 7, 7):
        with memory_meter(models) as meter:
            train(models, several, n_calls)
        plans += [plan for plan in training.plans if plan not in plans]
    assert meter.peak <= budget
    assert len(plans) <= 5


@dataclass
class Counts:
    """Solves as ``auto`` does, and counts the seconds that it may take."""

    seconds: list[float] = field(default_factory=list)

    def solve(self, problem: Problem) -> Solution:
        self.seconds.append(problem.time_limit)
        return solve(problem.graph, problem.budget, time_limit=0.2, fixed_order=True, throw=False)


def test_the_time_limit_is_for_all_calls_together() -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [Encoder()]
    budget = int(0.6 * plain_peak(models, multi_crop, 0))
    solver = Counts()
    enable(models[0], budget, loss_bytes=0, cost_model="flops", workspaces=False, solver=solver, time_limit=5)
    train(models, multi_crop, 0)
    solved = []
    for step in (1, 2):
        solver.seconds.clear()
        train(models, multi_crop, step)
        solved.append(sum(solver.seconds))
    assert 0 < max(solved) <= 5


def test_calls_that_do_not_fit_are_warned_of_once_with_the_guess_for_their_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [Encoder()]
    enable(models[0], 240_000, cost_model="flops", workspaces=False)
    for step in range(3):
        train(models, siamese, step)
    (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "no schedules for the 2 calls of a step together" in warned
    assert "pass loss= or loss_bytes=" in warned

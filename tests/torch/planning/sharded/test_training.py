"""A sharded model that is enabled: in place, one plan for each kind of call, and disabled again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.torch.sharded_nets import NEEDS, WIDTH
from torch import nn
from torch.distributed.fsdp import fully_shard

from checkmate import NoPlanError, UnsupportedModelError
from checkmate_torch import disable, enable, memory_meter, planned_training
from checkmate_torch.private import fake_ranks

pytestmark = NEEDS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


@pytest.fixture
def model() -> Iterator[nn.Module]:
    with fake_ranks(2):
        net = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(WIDTH, 4))
        for block in net[:3]:
            fully_shard(block)
        yield fully_shard(net)


def enabled(model: nn.Module, budget: str = "70%", **others: Any) -> Any:
    settings: Any = {"loss_bytes": 0, "cost_model": "flops", "time_limit": 1.0, "process_group": "alone"}
    return enable(model, budget, solver="heuristics", **settings, **others)


def step(model: nn.Module, size: int = 512) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(size, WIDTH)).square().mean()
    loss.backward()
    model.zero_grad()
    return loss


def test_the_first_step_is_planned_before_it_runs(model: nn.Module) -> None:
    training = enabled(model)
    assert planned_training(model) is training
    with pytest.raises(NoPlanError):
        training.report()
    step(model)
    assert len(training.plans) == 1
    x = torch.ones(512, WIDTH)
    with memory_meter(model, x) as meter:
        model(x).square().mean().backward()
    assert meter.peak <= training.plans[0].budget
    assert meter.peak == pytest.approx(training.plans[0].peak, rel=0.05)
    assert "for each rank" in repr(training)
    assert "measured peak" in str(training.report(meter))
    with pytest.raises(TypeError, match="takes a memory meter"):
        training.report(meter.peak)  # type: ignore[arg-type]


def test_each_kind_of_call_has_a_plan(model: nn.Module) -> None:
    training = enabled(model)
    for size in (512, 512, 128, 512):
        step(model, size)
    assert len(training.plans) == 2


def test_calls_of_too_many_kinds_run_unplanned(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    training = enabled(model, max_plans=1)
    for size in (512, 128, 64, 512):
        step(model, size)
    assert len(training.plans) == 1
    assert [r.message for r in caplog.records if "kinds of inputs" in r.message][1:] == []


def test_held_gradients_have_a_plan_and_the_tighter_schedules_stay(model: nn.Module) -> None:
    training = enabled(model, "60%")
    x = torch.ones(512, WIDTH)
    for _ in range(3):
        model(x).square().mean().backward()  # the second finds gradients
        model(x).square().mean().backward()
        model.zero_grad()
    assert 2 <= len(training.plans) <= 4
    assert all(plan.peak <= plan.budget for plan in training.plans)


def test_a_part_that_is_called_twice_has_one_schedule() -> None:
    with fake_ranks(2):
        block = Block()
        net = nn.Sequential(nn.Linear(WIDTH, WIDTH), block, nn.Tanh(), block, nn.Linear(WIDTH, 4))
        fully_shard(block)
        training = enabled(fully_shard(net), "85%")
        step(net)
        first, second = training.plans[0].parts
        assert first.name == second.name == "1"
        assert first.schedule == second.schedule


def test_inductor_is_refused(model: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match="lowering"):
        enabled(model, lowering="inductor")


def test_disable_restores_the_parts(model: nn.Module) -> None:
    training = enabled(model)
    disable(model)
    assert planned_training(model) is None
    assert not any("forward" in vars(module) for module in model.modules())
    step(model)
    assert training.plans == ()


def test_a_part_that_cannot_be_captured_runs_as_it_is(model: nn.Module) -> None:
    class Reading(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if float(x.detach().abs().max()) >= 0 else x

    net = nn.Sequential(Block(), Reading(), nn.Linear(WIDTH, 4))
    for block in net[:2]:
        fully_shard(block)
    training = enabled(fully_shard(net), "100%")
    step(net)
    assert [*training.plans[0].unplanned] == ["1"]
    assert [part.name for part in training.plans[0].parts] == ["0"]
    assert "runs as plain PyTorch" in str(training.report())

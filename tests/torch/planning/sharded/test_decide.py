"""Deciding for each rank of a sharded model: the budget is kept, and less costs more."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.torch.sharded_nets import NEEDS, WIDTH, Net, shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from checkmate import InfeasibleBudgetError, UnsupportedModelError
from checkmate_torch import enable, plan
from checkmate_torch.planning.sharded.decide import ShardedPlan
from checkmate_torch.private import fake_ranks

pytestmark = NEEDS


def planned(budget: str | int, world_size: int = 2) -> ShardedPlan:
    return plan(
        Net(blocks=4),
        torch.randn(256, WIDTH),
        budget,
        shard=shard,
        world_size=world_size,
        cost_model="flops",
        solver="heuristics",
        time_limit=1.0,
    )


def test_less_memory_costs_no_less() -> None:
    plans = [planned(budget) for budget in ("100%", "80%", "60%")]
    assert plans[0].overhead == 0
    assert plans[0].peak <= plans[0].plain_peak
    assert [p.peak <= p.budget for p in plans] == [True] * 3
    overheads = [p.overhead for p in plans]
    assert overheads == sorted(overheads)
    assert overheads[-1] > 0
    assert [part.name for part in plans[1].parts] == [f"blocks.{k}" for k in range(4)]


def test_the_error_names_a_budget_that_works() -> None:
    with pytest.raises(InfeasibleBudgetError) as caught:
        planned(1000)
    assert caught.value.minimum is not None
    assert caught.value.floor < caught.value.minimum
    assert planned(caught.value.minimum + 2**14).peak <= caught.value.minimum + 2**14


def test_more_ranks_hold_less_each() -> None:
    few, many = planned("100%", 2), planned("100%", 8)
    assert many.plain_peak < few.plain_peak
    assert not dist.is_initialized()


def test_the_report_shows_every_byte() -> None:
    text = str(planned("70%").report())
    for words in ("budget", "gathered parameters", "buffers of all-gathers", "activations"):
        assert words in text


def test_a_model_that_is_not_sharded_itself_is_refused() -> None:
    with fake_ranks(2):
        net = Net(blocks=4)
        fully_shard(net.blocks[0])
        with pytest.raises(UnsupportedModelError, match="apply it to the model last"):
            enable(net, "80%")


def test_offload_and_tensor_parallel_parameters_are_refused_by_name() -> None:
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        layer = parallelize_module(nn.Linear(4, 4), mesh["tp"], ColwiseParallel())
        with pytest.raises(UnsupportedModelError, match="tensor parallel"):
            enable(fully_shard(layer, mesh=mesh["dp"]), "80%")
        policy = CPUOffloadPolicy(pin_memory=False)
        with pytest.raises(UnsupportedModelError, match="offload"):
            enable(fully_shard(nn.Linear(4, 4), offload_policy=policy), "80%")


def test_shard_and_world_size_go_together() -> None:
    with pytest.raises(TypeError, match="go together"):
        plan(Net(blocks=4), torch.randn(2, WIDTH), "80%", shard=shard)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="2 or more"):
        planned("80%", 1)

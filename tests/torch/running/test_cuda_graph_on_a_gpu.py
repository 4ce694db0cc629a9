"""A step as one CUDA graph, on a GPU: bits, bytes of its pool, learning rates that change."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from checkmate_torch import CompiledStep, UnsupportedModelError, compile_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 20
SEGMENT = 20 * 2**20
"""The allocator reserves memory for large tensors in multiples of at most these bytes."""

Scheduled = Callable[[Optimizer], object]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.back(self.drop(nn.functional.gelu(self.wide(self.norm(x))))))


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def adam(model: nn.Module, lr: float | Tensor) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, capturable=True)


def fused_sgd(model: nn.Module, lr: float | Tensor) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=True)


def trained(
    cuda_graph: bool,
    scheduler: Scheduled = lambda _: None,
    lr: float | Tensor = 1e-3,
    make: Callable[[nn.Module, float | Tensor], Optimizer] = adam,
    **settings: Any,
) -> tuple[list[Tensor], CompiledStep]:
    """Losses of all steps and the parameters after them."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(6))).cuda()
    optimizer = make(model, lr.clone() if isinstance(lr, Tensor) else lr)
    schedule = scheduler(optimizer)
    graph = {"cuda_graph": cuda_graph, "split": False, **settings}
    step = compile_step(model, mean_square, optimizer, "60%", **graph)
    batches = torch.randn(STEPS, 4096, 256, generator=torch.Generator().manual_seed(1)).cuda()
    losses = []
    for k, x in enumerate(batches):
        if k == STEPS // 2:
            torch.manual_seed(7)
        losses.append(step(x))
        if schedule is not None:
            schedule.step()
    return [*losses, *model.parameters(), torch.cuda.get_rng_state()], step


def pool_bytes() -> int:
    """Bytes that the allocator reserves for pools of graphs."""
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))


@pytest.mark.parametrize(
    ("scheduler", "rate"),
    [
        (lambda _: None, 1e-3),
        (lambda optimizer: StepLR(optimizer, 7), 1e-3),
        (lambda optimizer: CosineAnnealingLR(optimizer, STEPS), "on the GPU"),
    ],
    ids=["constant", "in steps", "at every step"],
)
def test_the_same_bits_with_dropout_and_schedulers(scheduler: Scheduled, rate: float | str) -> None:
    lr = torch.tensor(1e-3, device="cuda") if isinstance(rate, str) else rate
    plain, _ = trained(False, scheduler, lr)
    captured, step = trained(True, scheduler, lr)
    assert pool_bytes() > 0, "nothing was captured"
    for one, other in zip(plain, captured, strict=True):
        assert torch.equal(one, other)
    assert "captured as one CUDA graph" in str(step.report())


def test_fused_sgd_with_a_rate_on_the_gpu_and_clipped_gradients() -> None:
    lr = torch.tensor(1e-3, device="cuda")
    settings: Any = {
        "scheduler": lambda optimizer: CosineAnnealingLR(optimizer, STEPS),
        "lr": lr,
        "make": fused_sgd,
        "max_norm": 0.05,
    }
    plain, _ = trained(False, **settings)
    captured, _ = trained(True, **settings)
    assert pool_bytes() > 0, "nothing was captured"
    assert all(map(torch.equal, plain, captured))


def test_sgd_that_reads_a_rate_on_the_host_is_refused() -> None:
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(1e-3, device="cuda"))
    step = compile_step(model, mean_square, optimizer, "100%", cuda_graph=True)
    with pytest.raises(UnsupportedModelError, match="SGD reads lr, a tensor on the GPU"):
        step(torch.randn(32, 64, device="cuda"))


def test_the_pool_is_within_the_budget() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = pool_bytes()
    results, step = trained(True)
    del results
    plan = step.plans[-1]
    held = sum(p.nbytes for p in step.model.parameters())
    states = sum(x.nbytes for s in step.optimizer.state.values() for x in s.values())
    assert pool_bytes() - before + held + states <= plan.solution.problem.budget + SEGMENT


def test_a_rate_that_is_a_number_changes_what_the_next_step_does() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 64).cuda()
    optimizer = adam(model, 1e-3)
    step = compile_step(model, mean_square, optimizer, "100%", cuda_graph=True)
    x = torch.randn(32, 64, device="cuda")
    for _ in range(4):
        step(x)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.param_groups[0]["weight_decay"] = 0.0
    before = model.weight.detach().clone()
    for _ in range(4):
        step(x)
        assert torch.equal(model.weight, before)

"""The last reference to a compiled model frees it, its optimizer, batch, plans and graphs."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from checkmate import InfeasibleBudgetError
from checkmate_torch import compile, compile_step, max_batch_size, plan, trace
from checkmate_torch.costs.meter import resident_bytes

SETTINGS = {"cost_model": "flops", "solver": "keep-all", "cache": False}
SCRIPT = Path(__file__).with_name("many_models.py")
LEFT_MIB = 30
"""Limit of memory that 6 models may leave behind; their parameters and gradients take 96 MiB."""


class Own(nn.Module):
    """A class with a forward pass, buffers, random numbers and a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = (
            nn.Linear(16, 32),
            nn.BatchNorm1d(32),
            nn.Dropout(0.1),
            nn.Linear(32, 16),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.drop(self.norm(self.a(x)))) * torch.tensor([2.0])


def of_containers() -> nn.Module:
    """A model whose forward pass is code of PyTorch."""
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))


Made = list[object]


def compiled(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    run = compile(model, "100%", optimizer=optimizer, on_progress=lambda _: model, **SETTINGS)
    for _ in range(2):  # with gradients of the first pass there is a second plan
        run(x).sum().backward()
    return [run, *run.plans]


def compiled_for_sizes_that_change(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    run = compile(model, 2**30, dynamic=True, **SETTINGS)
    for batch in (x, x[:3]):
        run(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [run, *run.plans]


def copied(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    run = copy.deepcopy(compile(model, "100%", **SETTINGS))
    run(x).sum().backward()
    return [run, run.original, *run.plans]


def refused(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    run = compile(model, "1B", **SETTINGS)
    with pytest.raises(InfeasibleBudgetError):
        run(x)
    return [run]


def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    run = compile_step(model, lambda m, x: m(x).square().mean(), optimizer, "100%", max_norm=1.0, **SETTINGS)
    run(x)
    optimizer.param_groups[0]["weight_decay"] = 0.1  # other settings, another plan
    run(x)
    return [run, *run.plans]


def distributed(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    if not dist.is_initialized():  # it ends with the test: a DDP module that dies later may wait for ever
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    wrapped = DistributedDataParallel(model)
    run = compile(wrapped, "100%", **SETTINGS)
    run(x).sum().backward()
    return [run, wrapped, *run.plans]


def backend(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    run = torch.compile(model, backend="checkmate", options={"budget": "100%", **SETTINGS})
    run(x).sum().backward()
    return [run]


def in_place(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    model.compile(backend="checkmate", options={"budget": "100%", **SETTINGS})
    model(x).sum().backward()
    return []


def traced(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    made = trace(model, x, optimizer=optimizer, cost_model="flops")
    return [made.traced]


def planned(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    plan(model, x, "100%", optimizer=optimizer, loss=torch.sum, **SETTINGS)
    return []


def largest_batch(model: nn.Module, optimizer: Optimizer, x: torch.Tensor) -> Made:
    found = max_batch_size(lambda n: torch.zeros(2 * n, 16), model, "1MiB", most=8, **SETTINGS)
    assert found.size == 8
    return []


OURS = (
    *(compiled, compiled_for_sizes_that_change, copied, refused, step, distributed),
    *(traced, planned, largest_batch),
)
DYNAMOS = (backend, in_place)
"""Dynamo keeps the graphs of these entry points, without tensors, for the next model of the same code."""


def live_bytes() -> int:
    """Bytes of all tensors that have memory."""
    return resident_bytes([x for x in gc.get_objects() if type(x) in (torch.Tensor, nn.Parameter)])


def graphs() -> set[int]:
    """The traced graphs that are alive."""
    return {id(x) for x in gc.get_objects() if issubclass(type(x), GraphModule)}


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Free the objects of other tests first, and look past those that stay: there may be millions."""
    torch.compiler.reset()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.compiler.reset()
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("model_of", "entry_point"),
    [
        *((Own, way) for way in (*OURS, *DYNAMOS)),
        *((of_containers, way) for way in (compiled, step, backend)),
    ],
    ids=lambda each: each.__name__,
)
def test_the_last_reference_frees_everything(
    model_of: Callable[[], nn.Module], entry_point: Callable[[nn.Module, Optimizer, torch.Tensor], Made]
) -> None:
    def use() -> list[weakref.ref[object]]:
        model, x = model_of(), torch.randn(8, 16)
        optimizer = torch.optim.AdamW(model.parameters())
        made = entry_point(model, optimizer, x)
        return [weakref.ref(thing) for thing in (model, optimizer, x, *model.parameters(), *made)]

    use()  # libraries make what they keep
    gc.collect()
    before, known = live_bytes(), graphs()
    references = use()
    gc.collect()
    assert [type(r()).__name__ for r in references if r() is not None] == []
    assert live_bytes() == before
    if entry_point in OURS:
        assert graphs() <= known


def test_a_compiled_model_is_freed_while_its_original_lives() -> None:
    model, x = Own(), torch.randn(8, 16)
    kept = compile(model, "100%", **SETTINGS)
    kept(x).sum().backward()
    model.zero_grad()
    gc.collect()
    known = graphs()
    for budget in ("100%", 2**30):
        run = compile(model, budget, **SETTINGS)
        run(x).sum().backward()
        model.zero_grad()
    reference = weakref.ref(run.plans[0])
    del run
    gc.collect()
    assert reference() is None
    assert graphs() <= known
    kept(x).sum().backward()
    assert len(kept.plans) == 1


def test_a_pending_backward_pass_outlives_the_compiled_model() -> None:
    module, x = Own(), torch.randn(8, 16)
    run = compile(module, "100%", **SETTINGS)
    loss = run(x).sum()
    del run
    gc.collect()
    loss.backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident set is read as on Linux")
def test_ten_models_in_turn_take_the_memory_of_one() -> None:
    glibc = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}  # what is freed goes back at once
    command = [sys.executable, str(SCRIPT)]
    result = subprocess.run(command, env={**os.environ, **glibc}, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    early, late = map(int, result.stdout.split())
    assert late - early < LEFT_MIB * 2**20

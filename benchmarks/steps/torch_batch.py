"""One whole training step of a network of the paper in PyTorch, at a batch, within a physical limit.

The operating system enforces the limit (``RLIMIT_DATA``): the bytes allowed for all tensors, parameters
included, plus what the process holds besides, code and graphs. Beyond it memory is refused, and the step ends
with an error. Every tensor of 64 KiB and more is a mapping (``MALLOC_MMAP_THRESHOLD_``), which the system
gets back as soon as it is freed. An earlier step loads the code and makes the plan. The optimizer is plain
gradient descent: it has no state.

- ``stock``: PyTorch as it is.
- ``remat``: ``torch.utils.checkpoint`` around each block.
- ``ours``: ``checkmate_torch.compile_step``, its budget the limit less a share for what no tensor holds. A
  schedule that costs more than one more forward pass, in FLOPs, is not run.
- ``losses``: all three for two steps, without a limit, ours within its least budget.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import resident_bytes
from steps.process import Row, answer, one_more_pass
from zoo.torch_nets import NETS, SEGMENTING, in_blocks

MIB = 2**20
_RATE = 1e-3
_STEPS = 2
_OUTSIDE = 0.02
"""Share of the limit for memory outside tensors: code, graphs and the buffers of kernel libraries."""


def measure(task: Row) -> Row:
    """The loss of one step by one method, its CPU seconds, and the peak of its tensors.

    Args:
        task: ``network``, ``side`` of its images in pixels, ``batch``, ``method``, ``limit`` in MiB, and
            ``time_limit`` of the solver in seconds.
    """
    if task["method"] == "losses":
        return {method: _losses(task | {"method": method})[-1] for method in ("stock", "remat", "ours")}
    budget = int((1 - _OUTSIDE) * task["limit"] * MIB)
    model, batch = _model(task), _batch(task)
    step = _step(model, task, budget)
    step(*(batch if task["method"] == "ours" else _batch(task | {"batch": 2})))  # loads all code, and plans
    outside = _held() - resident_bytes(model, batch)
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (outside + task["limit"] * MIB, most))
    start_s = time.process_time()
    loss = float(step(*batch))
    row: Row = {"loss": loss, "cpu_s": time.process_time() - start_s}
    if task["method"] == "ours":
        (plan,) = step.plans
        row |= one_more_pass(plan.solution) | {"expected": plan.solution.peak}
    return row


def _model(task: Row) -> nn.Module:
    """The network, recomputed in blocks if that is the method."""
    torch.manual_seed(0)
    name = task["network"]
    model = NETS[name](False, **{"side": task["side"]} if name == "vgg19" else {}).train()
    return in_blocks(name, model) if task["method"] == "remat" else model


def _batch(task: Row) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    batch, side = task["batch"], task["side"]
    x = torch.randn(batch, 3, side, side)
    if task["network"] not in SEGMENTING:
        return x, torch.randint(1000, (batch,))
    made = side // SEGMENTING[task["network"]]
    return x, torch.randint(19, (batch, made, made))


def _step(model: nn.Module, task: Row, budget: int | str) -> Callable[..., Any]:
    """A function that trains one step, and returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    if task["method"] == "ours":
        return checkmate_torch.compile_step(
            model,
            _loss,
            optimizer,
            budget,
            cost_model="flops",
            workspaces=True,
            time_limit=task["time_limit"],
        )

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = _loss(model, x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def _losses(task: Row) -> list[float]:
    """The loss of each of some steps by one method, ours within its least budget."""
    batch = _batch(task)

    def of(budget: int) -> list[float]:
        torch.manual_seed(2)  # of dropout
        step = _step(_model(task), task, budget)
        return [float(step(*batch)) for _ in range(_STEPS)]

    try:
        return of(2**10)
    except checkmate.InfeasibleBudgetError as error:
        return of(error.minimum or 0)


def _held() -> int:
    """Bytes of private writable memory of this process, which the limit counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmData in /proc/self/status: this measurement needs Linux")


if __name__ == "__main__":
    answer(measure)

"""Forward, loss and backward of one network by one way: Inductor, PyTorch's own budgets, and ours, fused.

- ``plain``: PyTorch as it is.
- ``inductor``: ``torch.compile``.
- ``torch``: the same at an ``activation_memory_budget``.
- ``checkpoint``: ``torch.utils.checkpoint`` around each block, or the library's own.
- ``eager``, ``fused``: ``checkmate_torch.compile`` within a share of the plain peak, or the least budget
  found, with ``lowering="eager"`` or ``"inductor"``.

All networks return their loss. Peaks are of live tensor bytes after a warm-up.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter
from steps.process import LEAST, Row, answer, timed
from steps.torch_step import gradient_error
from zoo.small_torch import CASES, Case
from zoo.torch_world import ARCHITECTURES, Trained

LOWERINGS = {"eager": "eager", "fused": "inductor"}


def measure(task: Row) -> Row:
    """Peak, time and gradients of one way, in this process.

    Args:
        task: ``network``, ``method``, ``share`` (of the plain peak, or PyTorch's budget), ``time_limit`` of
            the solver and ``spend_s`` for timing, in seconds.
    """
    name, method = task["network"], task["method"]
    plain, inputs = _made(name)
    model, _ = _made(name, checkpoints=method == "checkpoint")
    _step(plain, inputs)
    plain_peak = _peak(plain, inputs)
    start = time.perf_counter()
    run, facts = _prepared(model, inputs, task, plain_peak)
    facts["first_s"] = time.perf_counter() - start  # what plans or compiles, and a step
    _step(plain, inputs)
    _step(run, inputs)
    facts["gradient_error"] = gradient_error(model, plain)
    facts |= {"peak": _peak(run, inputs, model), "plain_peak": plain_peak}
    return facts | timed(lambda: _step(run, inputs), lambda: _step(plain, inputs), task["spend_s"])


def _prepared(model: nn.Module, inputs: Row, task: Row, plain_peak: int) -> tuple[Any, Row]:
    """What to call after its first step, and the fields that the way adds to the row."""
    method, share = task["method"], task["share"]
    run: Any = model
    if method in ("inductor", "torch"):
        torch._functorch.config.activation_memory_budget = 1.0 if share is None else share
        run = torch.compile(model)
    if method not in LOWERINGS:
        _step(run, inputs)
        return run, {}
    settings = {"time_limit": task["time_limit"], "lowering": LOWERINGS[method]}
    run = checkmate_torch.compile(model, max(int(share * plain_peak), 2**10), **settings)
    try:
        _step(run, inputs)
    except checkmate.InfeasibleBudgetError as error:
        if share != LEAST or error.minimum is None:
            raise
        run = checkmate_torch.compile(model, error.minimum, **settings)
        _step(run, inputs)
    fusions = [plan.fusion for plan in run.plans if plan.fusion is not None]
    facts: Row = {
        "budget": max(plan.solution.problem.budget for plan in run.plans),
        "expected": max(plan.peak for plan in run.plans),
        "overhead": max(plan.solution.overhead for plan in run.plans),
        "runs": sum(len(plan.solution.schedule.sequence) for plan in run.plans),
        "fused": sum(len(kernel.ops) for fusion in fusions for kernel in fusion.kernels.values()),
    }
    return run, facts


def _made(name: str, *, checkpoints: bool = False) -> tuple[nn.Module, Row]:
    """A network that returns its loss, in training mode, and its inputs; the same ones each time."""
    torch.manual_seed(0)
    if name in ARCHITECTURES:
        architecture = ARCHITECTURES[name]
        module, inputs, loss = architecture.make()
        if checkpoints and architecture.own is None:
            raise ValueError("the library has no gradient checkpointing for it")
        if checkpoints and architecture.own is not None:
            architecture.own(module)
        return Trained(module, loss).train(), dict(inputs)
    case = CASES[name](checkpoint_blocks=checkpoints)
    return _WithLoss(case), {"inputs": case.inputs, "targets": case.targets}


class _WithLoss(nn.Module):
    """A network of :mod:`zoo.small_torch` with its loss."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.module, self._loss = case.module, case.loss

    def forward(self, inputs: tuple[Tensor, ...], targets: Tensor | None) -> Tensor:
        """The loss."""
        return self._loss(self.module(*inputs))


def _step(run: Any, inputs: Row) -> None:
    module = getattr(run, "_orig_mod", run)
    for parameter in module.parameters():
        parameter.grad = None
    torch.manual_seed(1)  # the same dropout in each way
    run(**inputs).backward()


def _peak(run: Any, inputs: Row, model: nn.Module | None = None) -> int:
    """Peak bytes of a step."""
    model = run if model is None else model
    for parameter in model.parameters():
        parameter.grad = None
    with memory_meter(model, inputs) as meter:
        _step(run, inputs)
    return int(meter.peak)


if __name__ == "__main__":
    answer(measure)

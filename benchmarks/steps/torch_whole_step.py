"""Whole training steps in PyTorch, optimizer included: SGD with momentum for convolutions, else AdamW.

- ``plain``: PyTorch as it is; gradients are set to None after each step.
- ``checkpoint``: ``torch.utils.checkpoint`` around every block.
- ``compile``: ``checkmate_torch.compile``: forward and backward are planned, the optimizer runs afterwards.
- ``compile_step``: ``checkmate_torch.compile_step``: forward, loss, backward and updates in one graph.

Budgets are shares of plain PyTorch's *activation peak*: its peak beyond the bytes that are always resident
(parameters, buffers, batch, optimizer state). Peaks are of live tensor bytes after two steps.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

import checkmate
import checkmate_torch
from checkmate_torch import memory_meter
from steps.process import LEAST, Row, answer, timed
from steps.torch_step import facts_of
from zoo.small_torch import CASES, Case


def measure(task: Row) -> Row:
    """Peak, time and bits of one method, in this process.

    Args:
        task: ``network``, ``method``, ``share`` of the activation peak, ``time_limit`` of the solver and
            ``spend_s`` for timing, in seconds.
    """
    network = task["network"]
    plain = CASES[network]()
    optimizer = optimizer_of(plain)
    reference = plain_step(plain, plain.module, optimizer)
    for _ in range(2):
        reference()
    with memory_meter(plain.module, optimizer, plain.inputs, plain.targets) as meter:
        reference()
    row: Row = {"plain_peak": meter.peak, "resident": meter.base}

    plain, case = CASES[network](), CASES[network](checkpoint_blocks=task["method"] == "checkpoint")
    reference = plain_step(plain, plain.module, optimizer_of(plain))
    optimizer = optimizer_of(case)
    budget = int(meter.base + (task["share"] or LEAST) * (meter.peak - meter.base))
    step, solution = prepared(case, optimizer, task, budget)
    equal = all(torch.equal(step(), reference()) for _ in range(2))
    pairs = zip(case.module.parameters(), plain.module.parameters(), strict=True)
    row["equal"] = equal and all(torch.equal(mine, theirs) for mine, theirs in pairs)
    with memory_meter(case.module, optimizer, case.inputs, case.targets) as meter:
        step()
    row["peak"] = meter.peak
    return row | timed(step, reference, task["spend_s"]) | (facts_of(solution) if solution else {})


def optimizer_of(case: Case) -> Any:
    """The usual optimizer for such a network."""
    parameters = case.module.parameters()
    if case.name in ("resnet18", "unet"):
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(parameters, lr=1e-4)


def plain_step(case: Case, module: Any, optimizer: Any) -> Any:
    """The lines of a training loop, for a plain or a compiled module."""

    def step() -> Any:
        loss = case.loss(module(*case.inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def prepared(case: Case, optimizer: Any, task: Row, budget: int) -> tuple[Any, Any]:
    """The step of a method, and its solution if it has one."""
    if task["method"] in ("plain", "checkpoint"):
        return plain_step(case, case.module, optimizer), None
    before = copy.deepcopy(case.module.state_dict())

    def attempt(limit: int) -> tuple[Any, Any]:
        if task["method"] == "compile_step":
            whole = checkmate_torch.compile_step(
                case.module, lambda m, *x: case.loss(m(*x)), optimizer, limit, time_limit=task["time_limit"]
            )
            whole(*case.inputs)
            return lambda: whole(*case.inputs), whole.plans[0].solution
        state = 0 if case.name in ("resnet18", "unet") else 1
        reserve = (1 + state) * sum(p.nbytes for p in case.module.parameters())
        loss_bytes = 0
        if case.targets is not None:  # else the module computes its own loss
            loss_bytes = case.targets.nbytes + case.loss(case.module(*case.inputs)).untyped_storage().nbytes()
        compiled = checkmate_torch.compile(
            case.module, limit, reserve=reserve, loss_bytes=loss_bytes, time_limit=task["time_limit"]
        )
        step = plain_step(case, compiled, optimizer)
        step()
        return step, compiled.plans[0].solution

    try:
        made = attempt(budget if task["share"] else 1)
    except checkmate.InfeasibleBudgetError as error:
        if task["share"] != LEAST or error.minimum is None:
            raise
        made = attempt(error.minimum)
    case.module.load_state_dict(before)  # like the reference, which is untrained here
    optimizer.state.clear()
    return made


if __name__ == "__main__":
    answer(measure)

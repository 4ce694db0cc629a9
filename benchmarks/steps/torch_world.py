"""Three training steps of an architecture of :mod:`zoo.torch_world`, plainly and by one way to save memory.

- a share: within that share of the plain peak, or within the least budget that the error names.
- ``own``: the library's own gradient checkpointing.

Peaks are of live tensor bytes in forward, loss and backward of the last step, by the allocator's events.
The losses of the steps and all gradients of the last one are compared with plain PyTorch's; where bits
differ, also with those of the same model under ``torch.compile(backend="aot_eager")``, which traces the same
ops.
"""

from __future__ import annotations

import logging
import re
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter
from steps.process import LEAST, Row, answer, timed
from steps.torch_habit import Warned, alive_tensors, difference
from zoo.torch_world import ARCHITECTURES, Trained

_LEAST_OF_STEP = re.compile(r"the least budget known to work for them is (\d+) bytes")
SPEND_S = 5.0
"""Seconds for the pairs of steps that are timed."""


def measure(task: Row) -> Row:
    """Bits, budget, predicted and measured peak of one architecture and one way, in this process.

    Args:
        task: ``network``, ``method`` (``"own"`` or ``"checkmate"``), ``share`` of the plain peak,
            ``cost_model``, ``time_limit`` of the solver in seconds, ``time``: whether steps are timed.
    """
    network = task["network"]
    expected, facts = _plain(network)
    if task["method"] == "own":
        model, inputs = _made(network)
        _turn_on_own(model, network)
        results, peak = _trained(model, inputs)
    else:
        model, inputs, results, peak, of_plan = _within(task, facts["plain_peak"])
        facts |= of_plan
    facts |= {"peak": peak, "difference": difference(results, expected)}
    if facts["difference"]:
        traced, _ = _made(network)
        traced.compile(backend="aot_eager")
        facts["over_aot_eager"] = difference(results, _trained(traced, inputs)[0])
    if task["time"]:
        plain, _ = _made(network)
        facts |= timed(lambda: _step(model, inputs), lambda: _step(plain, inputs), SPEND_S)
    return facts


def _plain(network: str) -> tuple[Any, Row]:
    """The results of the plain steps, their peak, and bytes of parameters."""
    plain, inputs = _made(network)
    results, peak = _trained(plain, inputs)
    return results, {"plain_peak": peak, "parameters": sum(p.nbytes for p in plain.parameters())}


def _turn_on_own(model: Trained, network: str) -> None:
    """Turn on the library's own gradient checkpointing.

    Raises:
        ValueError: if it has none.
    """
    own = ARCHITECTURES[network].own
    if own is None:
        raise ValueError("the library has no gradient checkpointing for it")
    own(model.module)


def _within(task: Row, plain_peak: int) -> tuple[Trained, Row, Any, int, Row]:
    """Train within a share of the plain peak, or within the least budget.

    Returns the model, its inputs, the results, the peak and the facts of the plan.

    Where the least budget that the error names is too low for a later piece, its error names another, or a
    warning names that of the whole step.
    """
    budget, tries = max(2**10, int(task["share"] * plain_peak)), 4
    while True:
        torch._dynamo.reset()
        model, inputs = _made(task["network"])
        settings = {"cost_model": task["cost_model"], "time_limit": task["time_limit"]}
        planned = checkmate_torch.enable(model, budget, **settings)
        tries -= 1
        try:
            with Warned() as warned:
                results, peak = _trained(model, inputs)
        except checkmate.InfeasibleBudgetError as error:
            if task["share"] != LEAST or error.minimum is None or not tries:
                raise
            budget = error.minimum
            continue
        if task["share"] == LEAST and tries and (named := _LEAST_OF_STEP.search(" ".join(warned))):
            budget = int(named[1])
            continue
        solutions = [plan.solution for plan in planned.plans]
        facts = {
            "budget": budget,
            "expected": max(solution.peak for solution in solutions),
            "overhead": max(solution.overhead for solution in solutions),
            "plans": len(solutions),
        }
        return model, inputs, results, peak, facts


def _made(network: str) -> tuple[Trained, dict[str, Any]]:
    """The network in training mode and its inputs; the same random numbers every time."""
    torch.manual_seed(0)
    module, inputs, loss = ARCHITECTURES[network].make()
    return Trained(module, loss).train(), dict(inputs)


def _trained(model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, int]:
    """Losses and gradients of three steps, and the peak of the last.

    Pieces of a model are planned in the first step, and together in the second one.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    losses = []
    for _ in range(2):
        losses.append(_step(model, inputs))
        optimizer.step()
        optimizer.zero_grad()
    with memory_meter(alive_tensors()) as meter:
        loss = _step(model, inputs)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    results = [[x.detach().double().numpy().copy() for x in (*losses, loss, *gradients)]]
    optimizer.zero_grad()
    return results, int(meter.peak)


def _step(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Forward and backward pass, without earlier gradients; the loss."""
    model.zero_grad()
    loss: Tensor = model(**inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach().clone()  # the number alone: that of mse_loss is in a storage of the whole output


if __name__ == "__main__":
    logging.getLogger("checkmate_torch").propagate = False
    warnings.simplefilter("ignore")
    answer(measure)

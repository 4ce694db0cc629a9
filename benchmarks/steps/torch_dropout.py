"""Gradients under dropout: Checkmate's, and those of PyTorch's own ``activation_memory_budget``.

A GPT-2-like decoder with dropout takes one step from the same seed, plainly and in one of two ways: within a
budget of Checkmate's (a share of the plain peak), or under PyTorch's partitioner at a share of the bytes that
it would save. The error is |g − g'| / |g'| over all parameters together, where g' is plain PyTorch's. The
loss cannot show it: a new mask in the backward pass changes gradients only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter
from steps.process import LEAST, Row, answer
from steps.torch_step import gradient_error, torch_module
from zoo.small_torch import Case, gpt2

SIZES = {"layers": 2, "width": 64, "heads": 4, "length": 64, "batch": 8, "vocabulary": 256}


def measure(task: Row) -> Row:
    """Error of the gradients, and peak.

    Args:
        task: ``method`` (checkmate or torch), ``share`` and the probability ``dropout``.
    """
    plain, case = fresh(task["dropout"]), fresh(task["dropout"])
    peak, loss = step(plain, plain.module)
    prepare = ours if task["method"] == "checkmate" else theirs
    mine = step(case, prepare(case, task["share"], peak))
    error = gradient_error(case.module, plain.module)
    return {"gradient_error": error, "peak": mine[0], "plain_peak": peak, "loss_equal": mine[1] == loss}


def fresh(dropout: float) -> Case:
    """The network with the same weights in every call."""
    return gpt2(dropout=dropout, **SIZES)


def step(case: Case, module: Any) -> tuple[int, float]:
    """Peak bytes and loss of the second of two equal steps; its gradients stay."""
    for run in ("plans", "is measured"):
        torch.manual_seed(7)
        for parameter in case.module.parameters():
            parameter.grad = None
        if run == "plans":
            module(*case.inputs).backward()
    with memory_meter(case.module, case.inputs) as meter:
        loss = module(*case.inputs)
        loss.backward()
    return meter.peak, float(loss)


def ours(case: Case, budget: float, peak: int) -> Any:
    """Checkmate at a share of the plain step's peak."""
    compiled = partial(checkmate_torch.compile, case.module, loss_bytes=0, time_limit=3.0)
    if budget != LEAST:
        return compiled(int(budget * peak))
    try:
        compiled(1)(*case.inputs)
    except checkmate.InfeasibleBudgetError as error:
        return compiled(error.minimum or 1)
    raise RuntimeError("a budget of one byte was met")


def theirs(case: Case, budget: float, _peak: int) -> Any:
    """PyTorch's partitioner at a share of the bytes that it would save."""
    return torch_module(case.module, budget, decomposed=False)


if __name__ == "__main__":
    answer(measure)

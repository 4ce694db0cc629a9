"""Forward and backward, or a whole step, of one network within a budget: parts of it may run in pieces.

- ``compile``, ``step``: ``checkmate_torch.compile``, ``compile_step`` with plain SGD, within a share of the
  peak of plain PyTorch, with ``split="auto"``.
- ``whole``: ``compile`` with ``split=False``.
- ``linear_cross_entropy``: PyTorch's function of this name in the place of last layer and loss, in its own
  chunks.
- ``chunks``: last layer and loss of 256 tokens at a time, each recomputed in the backward pass.

The last two are followed by ours, within their peak. Peaks are of live tensor bytes after a warm-up, times
are medians of pairs with plain PyTorch. All clocks show CPU seconds of this process, which runs one thread:
so other programs on the machine don't disturb the costs of ops, nor the comparison.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter
from steps.process import Row, answer, timed
from steps.torch_step import gradient_error
from zoo.torch_vocabularies import IMAGES, LANGUAGE, Language

_CHUNK = 256
"""Tokens, as TRL has it."""


def measure(task: Row) -> Row:
    """Peak, time and gradients of one way, in this process.

    Args:
        task: ``network``, ``method``, ``share`` of the plain peak, ``time_limit`` of the solver and
            ``spend_s`` for timing, in seconds.
    """
    torch.manual_seed(0)
    plain, inputs = (LANGUAGE | IMAGES)[task["network"]]()
    ours = copy.deepcopy(plain)
    if task["method"] == "step":
        return _measured_step(plain, ours, inputs, task)
    _pass(plain, inputs)
    plain_peak = _peak(partial(_pass, plain, inputs), plain, inputs)
    row: Row = {"plain_peak": plain_peak}
    if task["method"] in _PEERS:
        theirs = _WithHead(LANGUAGE[task["network"]], copy.deepcopy(plain.model), _PEERS[task["method"]])
        _pass(theirs, inputs)
        _pass(plain, inputs)
        row["their_gradient_error"] = gradient_error(theirs, plain)
        row["their_peak"] = budget = _peak(partial(_pass, theirs, inputs), theirs, inputs)
        both = timed(partial(_pass, theirs, inputs), partial(_pass, plain, inputs), task["spend_s"])
        row["their_time_overhead"] = both["time_overhead"]
    else:
        budget = int(task["share"] * plain_peak)
    start = time.perf_counter()
    split = False if task["method"] == "whole" else "auto"
    run = checkmate_torch.compile(ours, budget, time_limit=task["time_limit"], split=split)
    try:
        loss = _pass(run, inputs, ours)
    except checkmate.InfeasibleBudgetError as error:
        return row | {"budget": budget, "needs": error.minimum}
    row["first_s"] = time.perf_counter() - start
    loss_error = abs(float(loss / _pass(plain, inputs)) - 1)
    row |= {"gradient_error": gradient_error(ours, plain), "loss_error": loss_error}
    row |= _facts(run.plans[0]) | {"peak": _peak(partial(_pass, run, inputs, ours), ours, inputs)}
    if task["method"] not in _PEERS:
        return row | timed(partial(_pass, run, inputs, ours), partial(_pass, plain, inputs), task["spend_s"])
    against = timed(partial(_pass, run, inputs, ours), partial(_pass, theirs, inputs), task["spend_s"])
    return row | {"against": against["time_overhead"], "pairs": against["pairs"]}


def _measured_step(plain: nn.Module, ours: nn.Module, inputs: Row, task: Row) -> Row:
    """The same of a whole step."""
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2)

    def plain_step() -> Tensor:
        loss = plain(**inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()  # type: ignore[no-any-return]

    losses = [plain_step() for _ in range(2)]
    plain_peak = _peak(plain_step, plain, inputs)
    budget = int(task["share"] * plain_peak)
    row: Row = {"plain_peak": plain_peak, "budget": budget}
    start = time.perf_counter()
    step = checkmate_torch.compile_step(
        ours,
        lambda model: model(**inputs),
        torch.optim.SGD(ours.parameters(), lr=1e-2),
        budget,
        time_limit=task["time_limit"],
    )
    try:
        found = [step() for _ in range(2)]
    except checkmate.InfeasibleBudgetError as error:
        return row | {"needs": error.minimum}
    row["first_s"] = time.perf_counter() - start
    row["loss_error"] = max(abs(float(a / b) - 1) for a, b in zip(found, losses, strict=True))
    row |= _facts(step.plans[0]) | {"peak": _peak(step, ours, inputs)}
    pairs = zip(ours.parameters(), plain.parameters(), strict=True)  # after three steps each
    row["parameter_error"] = max(
        float((p - q).detach().norm() / q.detach().norm().clamp_min(1e-30)) for p, q in pairs
    )
    return row | timed(step, plain_step, task["spend_s"])


def _facts(plan: Any) -> Row:
    """The fields of a row that come from a plan."""
    divided, solution = plan.divided, plan.solution
    plain_cost = solution.problem.graph.ideal_cost if divided is None else divided.plain_cost
    return {
        "budget": solution.problem.budget,
        "expected": plan.peak,
        "overhead": solution.cost / plain_cost - 1,
        "pieces": [] if divided is None else [len(rows) for _, rows in divided.divisions],
    }


def _pass(run: Any, inputs: Row, module: nn.Module | None = None) -> Tensor:
    """The loss, after the gradients are made."""
    module = run if module is None else module
    for parameter in module.parameters():
        parameter.grad = None
    loss = run(**inputs)
    loss.backward()
    return loss.detach()  # type: ignore[no-any-return]


def _peak(step: Callable[[], object], *held: object) -> int:
    """Peak bytes of a step, without gradients of one before."""
    for parameter in held[0].parameters():  # type: ignore[attr-defined]
        parameter.grad = None
    with memory_meter(*held) as meter:
        step()
    return int(meter.peak)


class _WithHead(nn.Module):
    """A language model whose last layer and loss are one function of its last states."""

    def __init__(self, case: Language, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        place, _, name = case.head.rpartition(".")
        self.model, self.loss = model, loss
        parent = model.get_submodule(place)
        self.head = getattr(parent, name)
        setattr(parent, name, nn.Identity())  # the model's “logits” are then its last states
        self.causal = case.auto == "AutoModelForCausalLM"
        self.cap = getattr(model.config, "final_logit_softcapping", None)
        model.config.final_logit_softcapping = None  # type: ignore[union-attr]
        self.translates = case.auto == "AutoModelForSeq2SeqLM"

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        more = {"decoder_input_ids": self.model._shift_right(labels)} if self.translates else {}  # type: ignore[operator]
        states = self.model(input_ids=input_ids, **more).logits
        if self.causal:
            labels = functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return self.loss(states.flatten(0, 1), self.head, labels.flatten(), self.cap)


def _linear_cross_entropy(states: Tensor, head: nn.Module, labels: Tensor, cap: float | None) -> Tensor:
    if cap is not None:
        raise ValueError("it has no soft-capping")
    options = nn.LinearCrossEntropyOptions()  # type: ignore[attr-defined]
    return functional.linear_cross_entropy(  # type: ignore[attr-defined, no-any-return]
        states, head.weight, labels, linear_bias=head.bias, options=options
    )


def _in_chunks(states: Tensor, head: nn.Module, labels: Tensor, cap: float | None) -> Tensor:
    def loss_of(states: Tensor, labels: Tensor) -> Tensor:
        logits = head(states)
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return functional.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")

    chunks = zip(states.split(_CHUNK), labels.split(_CHUNK), strict=True)
    total = sum(checkpoint(loss_of, *chunk, use_reentrant=False) for chunk in chunks)
    return total / (labels != -100).sum()  # type: ignore[return-value]


_PEERS = {"linear_cross_entropy": _linear_cross_entropy, "chunks": _in_chunks}


if __name__ == "__main__":
    time.perf_counter = time.process_time
    answer(measure)

"""Recomputation policies of an architecture of :mod:`zoo.torch_world`: judged, exported, and executed.

Executed steps run forward and backward pass on the CPU. Peaks are the most live tensor bytes by the
allocator's events; FLOPs are PyTorch's own count, with its formula for attention on a GPU for that on a CPU.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import checkmate_torch
from checkmate_torch import LibraryDefault, PolicyError, Recompute, Save
from checkmate_torch.costs.flops import LIKE_ON_GPU
from checkmate_torch.costs.meter import memory_meter
from checkmate_torch.policies.judge import Judged
from checkmate_torch.policies.policy import (
    EagerPolicy,
    applied,
    outermost_layers,
    own_checkpointing,
    usual_policies,
)
from steps.process import Row, answer
from zoo.torch_world import ARCHITECTURES, LARGER

_PRODUCTS = tuple(Save(op=f"aten.{name}") for name in ("mm.*", "addmm.*", "bmm.*", "convolution.*"))
_SETTINGS: dict[str, Any] = {"cost_model": "flops", "workspaces": True, "cache": False, "progress": False}


def measure(task: Row) -> Row:
    """The answers for one architecture, in this process.

    Args:
        task: ``network``, and ``part``: ``"judge"`` or ``"export"``; for the latter ``budgets``.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    is_judged = task["part"] == "judge"
    made = ARCHITECTURES[task["network"]]
    module, inputs, loss = (made if is_judged else LARGER.get(task["network"], made)).make()
    step = _Step(module.train(), dict(inputs), loss)
    rows = _judged(step) if is_judged else _exported(step, task["budgets"])
    return {"rows": list(rows)}


class _Step:
    """Forward and backward pass of a model."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any], loss: Callable[[Any], torch.Tensor]) -> None:
        self.model, self.inputs, self.loss = model, inputs, loss
        self()  # what is made once, such as tables of positions
        self.flops = self.counted()
        model.zero_grad()

    def __call__(self) -> None:
        self.loss(self.model(**self.inputs)).backward()

    def peak(self) -> int:
        """The most live bytes, in a step without gradients before it."""
        gc.collect()
        with memory_meter(self.model, self.inputs) as meter:
            self()
        self.model.zero_grad()
        return meter.peak

    def counted(self) -> int:
        """FLOPs of products, convolutions and attention."""
        own = {op: _raw(flop_registry[like]) for op, like in LIKE_ON_GPU.items()}
        with FlopCounterMode(display=False, custom_mapping=own) as counter:
            self()
        self.model.zero_grad()
        return int(counter.get_total_flops())


def _judged(step: _Step) -> Iterator[Row]:
    policies = _policies(step.model)
    found = checkmate_torch.judge(
        step.model, step.inputs, [*policies.values()], loss=step.loss, time_limit=0, **_SETTINGS
    )
    for (name, policy), row in zip(policies.items(), found.rows, strict=True):
        with applied(policy, step.model):
            measured, again = step.peak(), step.counted() - step.flops
        yield {
            "policy": name,
            "peak": row.peak,
            "measured": measured,
            "overhead": row.overhead,
            "flops_again": row.flops_again,
            "flops_counted": again,
        }


def _policies(model: nn.Module) -> dict[str, EagerPolicy]:
    """Six policies as they are in use."""
    usual = usual_policies(model)[0]
    own = own_checkpointing(model)
    outer = outermost_layers(model)
    nth = LibraryDefault(every=2) if own and model.__module__.startswith("transformers") else None
    return {
        "plain": Recompute(),
        "the library's" if own else "each layer": usual,
        "every second layer": nth or Recompute(modules=outer, every=2),
        "every third layer": Recompute(modules=outer, every=3),
        "saving products": Recompute(modules=outer, save=_PRODUCTS),
        "saving attention": Recompute(modules=outer, save=(Save(op="aten._scaled_dot_product*"),)),
    }


def _exported(step: _Step, budgets: list[str]) -> Iterator[Row]:
    usual = _usual(step)
    for budget in budgets:
        for target in ("sac", "every-n-layers"):
            limit = 1.0 if target == "sac" else 0.0  # of our own schedule, once for each budget
            try:
                found = checkmate_torch.export(
                    step.model, step.inputs, budget, target, loss=step.loss, time_limit=limit, **_SETTINGS
                )
            except PolicyError as error:
                yield {"budget": budget, "target": target, "failed": str(error)}
                continue
            with ExitStack() as undo:
                undo.callback(found.apply(step.model))
                measured = step.peak()
            row = found.judged
            yield {
                "budget": budget,
                "target": target,
                "bytes": found.budget,
                "peak": row.peak,
                "measured": measured,
                "overhead": row.overhead,
                "own_overhead": row.best_overhead,
                "bound": row.bound,
                "usual": min((r.overhead for r in usual if r.peak <= found.budget), default=None),
                "usual_at_peak": min((r.overhead for r in usual if r.peak <= row.peak), default=None),
            }


def _usual(step: _Step) -> tuple[Judged, ...]:
    """The library's own checkpointing, and every n-th layer, for all n; plain training first."""
    layers = outermost_layers(step.model)
    policies = [*usual_policies(step.model)]
    policies += [Recompute(modules=layers, every=n) for n in range(1, len(layers) + 1)]
    judged = checkmate_torch.judge(
        step.model, step.inputs, policies, loss=step.loss, time_limit=0, **_SETTINGS
    )
    return judged.rows


def _raw(formula: Callable[..., int]) -> Callable[..., int]:
    def count(*args: Any, **kwargs: Any) -> int:
        return formula(*args, **kwargs)

    count._get_raw = True  # type: ignore[attr-defined]
    return count


if __name__ == "__main__":
    answer(measure)

"""Plans for a GPU that need not be here: the least budget and the extra time, with ops in pieces and without.

    budget(share) = share · peak        extra time = cost / cost of each op once, whole, − 1

``peak`` is that of the step without recomputation and without pieces. Models are on the device meta, so
nothing has memory, and nothing is run.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

import checkmate
import checkmate_torch
from checkmate import Solution, keep_all_peak
from checkmate_torch.api import trace_step
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.planning.dividing import decide_in_pieces
from checkmate_torch.planning.steps.stages import PricedStep, Step
from checkmate_torch.planning.steps.unbroken_step import WholeStep
from steps.process import Row, answer
from zoo.torch_vocabularies import PUBLISHED

_DEVICE = "cuda:H100-80GB"


def measure(task: Row) -> Row:
    """Least budgets and extra times of one model.

    Args:
        task: ``model``, ``way`` (``step``: with plain SGD, ``apart``: forward and backward), ``shares``,
            ``time_limit`` of the solver in seconds, and ``counts`` of pieces of the loss: with none, the
            least budget and the numbers that are decided are found.
    """
    warnings.simplefilter("ignore")
    with torch.device("meta"):
        model, inputs = PUBLISHED[task["model"]]()
    start = time.perf_counter()
    kind, step = _traced(model, inputs, task["way"])
    row: Row = {
        "peak": keep_all_peak(step.graph),
        "base": step.graph.base_size,
        "ops": step.graph.n_ops,
        "trace_s": time.perf_counter() - start,
    }
    found = _Cells(kind=kind, step=step, time_limit=task["time_limit"])
    if task["counts"]:
        by_hand = [{_loss(step): count} for count in task["counts"]]
        row["least_by_hand"] = min(filter(None, map(found.least, by_hand)), default=None)
        row["by_hand"] = [*found.at(task["shares"], by_hand)]
    else:
        row["least"] = {str(split): found.least(split) for split in (False, "auto")}
        row["cells"] = [*found.at(task["shares"], (False, "auto"))]
    return row


def _traced(model: torch.nn.Module, inputs: Row, way: str) -> tuple[Step, PricedStep]:
    """How the step is planned, and the priced step."""
    if way == "apart":
        traced = checkmate_torch.trace(model, inputs, device=_DEVICE)
        return traced.kind, replace(traced.priced, peak_now=keep_all_peak(traced.graph))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    step = WholeStep(model=model, loss_fn=lambda model, inputs: model(**inputs), optimizer=optimizer)
    kind, priced, _ = trace_step._traced(step, (inputs,), _DEVICE, {})
    return kind, priced


def _loss(step: PricedStep) -> str:
    """The op whose region is cut by hand."""
    return next(op.name for op in step.graph.ops if op.name.startswith("_log_softmax_backward_data"))


class _Cells:
    """Answers for a step."""

    def __init__(self, *, kind: Step, step: PricedStep, time_limit: float) -> None:
        self.kind, self.step, self.time_limit = kind, step, time_limit
        self.peak = keep_all_peak(step.graph)

    def at(self, shares: list[float], splits: Any) -> Iterator[Row]:
        """For each share and setting, the extra time; None = nothing was found."""
        for share in shares:
            for split in splits:
                start = time.perf_counter()
                step, found = self._decided(share, split)
                yield {
                    "share": share,
                    "split": next(iter(split.values())) if isinstance(split, dict) else split,
                    "overhead": self._extra(found),
                    "gap": found.gap if found.timeline is not None else None,
                    "status": str(found.status),
                    "pieces": _pieces(step),
                    "seconds": time.perf_counter() - start,
                }

    def least(self, split: object) -> float | None:
        """The least share that is known to work."""
        a_little = (self.step.graph.base_size + 2**20) / self.peak  # which no step of these can keep
        try:
            self._decided(a_little, split, throw=True)
        except checkmate.InfeasibleBudgetError as error:
            return None if error.minimum is None else error.minimum / self.peak
        return a_little

    def _decided(self, share: float, split: Any, *, throw: bool = False) -> tuple[PricedStep, Solution]:
        budget = int(share * self.peak)
        options = replace(self.kind.options, budget=budget, split=split, time_limit=self.time_limit)
        with _on_device():
            return decide_in_pieces(replace(self.kind, options=options), self.step, throw=throw)

    def _extra(self, found: Solution) -> float | None:
        return None if found.timeline is None else found.timeline.cost / self.step.graph.ideal_cost - 1


def _pieces(step: PricedStep) -> list[int]:
    divisions = () if step.divided is None else step.divided.divisions
    return sorted({len(rows) for _, rows in divisions}, reverse=True)


def _on_device() -> AbstractContextManager[object]:
    target = Target.parse(_DEVICE)
    return contextlib.nullcontext() if target is None else for_target(target)


if __name__ == "__main__":
    answer(measure)

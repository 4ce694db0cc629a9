"""A habit of :mod:`zoo.habits`, run plainly and through each door within a budget: equal bits, and the peak.

The budget is three quarters of the peak of the plain step or, where no schedule is within that, the least
budget that the error names. The last step is measured; all tensors that exist before it are counted from its
start.
"""

from __future__ import annotations

import gc
import logging
import random
import re
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter
from steps.process import Row, answer
from zoo.habits import HABITS
from zoo.habits.habit import Door, Habit

__all__ = ["Arrays", "Warned", "alive_tensors", "as_array", "difference", "least_named", "measure"]

_SHARE = 0.75
_TRIES = 6
_SETTINGS: dict[str, Any] = {"cost_model": "flops", "time_limit": 2.0, "cache": False}

Arrays = list[npt.NDArray[Any]]


def measure(task: Row) -> Row:
    """The answer of each door: bits, budget, measured peak, warnings; or the error.

    Args:
        task: ``habit``, and its ``doors``: functions of ``checkmate.torch``, or ``"backend"``.
    """
    logging.getLogger("torch._dynamo.convert_frame").setLevel(logging.WARNING)  # heard by one of our warnings
    habit = HABITS[task["habit"]]
    steps = len(_trained(habit, lambda model, _=None: model)[0])
    plain, plain_peak = _trained(habit, lambda model, _=None: model, steps)
    return {
        "plain_peak": plain_peak,
        **{name: _judged_twice(habit, name, plain, plain_peak) for name in task["doors"]},
    }


def _judged_twice(habit: Habit, name: str, plain: list[Arrays], plain_peak: int) -> Row:
    """The answer; where the budget is exceeded, also the error with ``strict=True``, if there is one."""
    found = _judged(habit, name, plain, plain_peak)
    if found.get("peak", 0) > found["budget"]:
        found["strict"] = _judged(habit, name, plain, plain_peak, strict=True).get("refused")
    return found


def _judged(habit: Habit, name: str, plain: list[Arrays], plain_peak: int, *, strict: bool = False) -> Row:
    budget = int(_SHARE * plain_peak)
    with Warned() as warned:
        for _ in range(_TRIES):
            torch._dynamo.reset()
            warned.clear()
            try:
                door = partial(_planned, name, budget, strict)
                ours, peak = _trained(habit, door, len(plain))
                break
            except Exception as failure:  # noqa: BLE001 - an error is an answer, too
                least = least_named(failure)
                if least is None or least <= budget:
                    return {"budget": budget, **_failure(failure), "warned": warned}
                budget = least
        else:
            return {"budget": budget, "failed": f"no budget within {_TRIES} tries"}
    return {"budget": budget, "peak": peak, "difference": difference(ours, plain), "warned": warned}


def least_named(failure: Exception) -> int | None:
    """The least budget that an error names, also one that PyTorch wraps; None if it names none."""
    least: int | None = getattr(getattr(failure, "inner_exception", failure), "minimum", None)
    return least


def _failure(failure: Exception) -> Row:
    text = _without_folders(f"{type(failure).__name__}: {failure}")[:600]
    return {"refused" if isinstance(failure, checkmate.CheckmateError) else "failed": text}


def _planned(
    name: str, budget: int, strict: bool, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Any:
    """The model behind one of our doors."""
    settings = {"optimizer": optimizer, "strict": strict, **_SETTINGS}
    if name == "backend":
        return torch.compile(model, backend="checkmate", options={"budget": budget, **settings})
    made = getattr(checkmate_torch, name)(model, budget, **settings)
    return model if name == "enable" else made


def _trained(habit: Habit, door: Door, steps: int = 0) -> tuple[list[Arrays], int]:
    """The results of each step, and the peak of live bytes in step number ``steps``; 0 = none is measured."""
    torch.manual_seed(0)
    random.seed(0)
    results: list[Arrays] = []
    peak = 0
    running = habit(door)
    while True:
        if len(results) + 1 == steps:
            with memory_meter(alive_tensors(), device="cpu") as meter:
                found = next(running, None)
            peak = int(meter.peak)
        else:
            found = next(running, None)
        if found is None:
            return results, peak
        results.append([as_array(x) for x in found])
        del found


def alive_tensors() -> list[torch.Tensor]:
    """All real tensors on the CPU that Python holds, and the gradients of those."""
    gc.collect()
    found = [x for x in gc.get_objects() if type(x) in (torch.Tensor, nn.Parameter) and not is_wrapped(x)]
    found += [x.grad for x in found if x.is_leaf and x.grad is not None]
    parts = [
        part
        for x in found
        for part in ((x._indices(), x._values()) if x.layout == torch.sparse_coo else (x.detach(),))
    ]
    return [x for x in parts if x.device.type == "cpu"]


def as_array(x: torch.Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor's numbers."""
    dense = x.detach().to_dense() if x.layout != torch.strided else x.detach()
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64).numpy().copy()


def difference(ours: list[Arrays], plain: list[Arrays]) -> float:
    """The largest difference between two runs, as a share of the largest number; 0 = equal bits."""
    if [len(step) for step in ours] != [len(step) for step in plain]:
        return float("inf")
    worst = 0.0
    for step, same_step in zip(ours, plain, strict=True):
        for x, y in zip(step, same_step, strict=True):
            if x.shape != y.shape:
                return float("inf")
            if x.tobytes() != y.tobytes():
                off = float(np.abs(x - y).max() / (np.abs(y).max() or 1.0))
                worst = max(worst, off if off == off else float("inf"))
    return worst


def _without_folders(text: str) -> str:
    """A message whose quoted absolute paths are file names, as of Dynamo's places in the code."""
    return re.sub(r'"/[^"]*/', '"', text)


class Warned(logging.Handler):
    """Collects the warnings of checkmate_torch in a block."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a warning."""
        self.said.append(_without_folders(record.getMessage())[:400])

    def __enter__(self) -> list[str]:
        logging.getLogger("checkmate_torch").addHandler(self)
        return self.said

    def __exit__(self, *_: object) -> None:
        logging.getLogger("checkmate_torch").removeHandler(self)


if __name__ == "__main__":
    answer(measure)

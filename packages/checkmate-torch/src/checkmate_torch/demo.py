"""One real training run, twice from equal weights over equal batches: plain, and within a byte budget.

If recomputation is exact, the losses of both runs are the same numbers; if the plan is true, the live bytes
of the second never exceed its budget. ``checkmate demo`` (:mod:`checkmate_torch.command`) shows both.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from checkmate import Solution
from checkmate.errors import MissingDistributionError, install_hint
from checkmate.units import Budget, parse_budget
from checkmate_torch.compiled import compile
from checkmate_torch.meter import MemoryMeter, memory_meter, resident_bytes
from checkmate_torch.zoo import resnet18

__all__ = ["Comparison", "Run", "compare", "digits", "network"]

_BATCH = 16
_IMAGE = 64
_STAGES = (3, 3, 2, 2)
_TIME_LIMIT_S = 10.0
_UNTIMED = 2
"""First steps left out of the median: planning, allocation of the optimizer's state."""
_LOSS_RTOL = 1e-4
"""Recomputation runs the same kernels on the same values: the losses are equal, most often to the last bit.
Kernels that sum in an order of their own choice differ in the last of 24 bits, 6e-8; some dozens of steps may
amplify that a thousandfold, while a wrong gradient shows in the second loss with 1e-2 and more."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A training run.

    Attributes:
        losses: of each step.
        step_s: median seconds of a step.
        peak: the most live bytes in any step after the first.
        last: the memory of the last step.
        optimizer_bytes: state of the optimizer.
    """

    losses: tuple[float, ...]
    step_s: float
    peak: int
    last: MemoryMeter
    optimizer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Both runs, the budget of the second in bytes, and its plan."""

    plain: Run
    checkmate: Run
    budget: int
    solution: Solution

    @property
    def within_budget(self) -> bool:
        """Whether the second run never held more than its budget."""
        return self.checkmate.peak <= self.budget

    @property
    def same_losses(self) -> bool:
        """Whether the losses of both runs are equal, up to the rounding of float32."""
        return np.allclose(self.plain.losses, self.checkmate.losses, rtol=_LOSS_RTOL, atol=0)


def network() -> nn.Module:
    """A residual network for images of one channel, in the manner of ResNet-18."""
    return resnet18(channels=1, batch=1, image=8, stages=_STAGES).module


def digits(steps: int, *, batch: int = _BATCH, image: int = _IMAGE, seed: int = 0) -> list[Batch]:
    """Batches of scikit-learn's handwritten digits, 8×8 pixels scaled up to ``image``; nothing is downloaded.

    Returns:
        ``steps`` pairs of images float32 ``[batch, 1, image, image]`` in 0 … 1 and labels int64 ``[batch]``.

    Raises:
        MissingDistributionError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        hint = install_hint("checkmate-solvers checkmate-torch[demo]")
        raise MissingDistributionError(
            f"the demo's data come with scikit-learn: {hint}", name=error.name
        ) from error
    images, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16
    generator = torch.Generator().manual_seed(seed)
    batches: list[Batch] = []
    while len(batches) < steps:
        order = torch.randperm(len(small), generator=generator)
        for chosen in order[: len(order) // batch * batch].view(-1, batch):
            x = functional.interpolate(small[chosen], size=(image, image), mode="bilinear")
            batches.append((x, torch.from_numpy(labels)[chosen]))
    return batches[:steps]


def compare(
    model: nn.Module, batches: Sequence[Batch], budget: Budget, *, advance: Callable[[str], None]
) -> Comparison:
    """Train two copies of ``model``: plainly, then within ``budget``, a share being of the plain peak.

    Args:
        model: maps images to logits; is not changed.
        batches: one for each step, at least two.
        budget: of the second run.
        advance: called before each step with the name of the run.

    Raises:
        InfeasibleBudgetError: if no schedule within the budget was found.
    """
    plain = _train(copy.deepcopy(model), batches, lambda: advance("plain"))
    limit = parse_budget(budget, plain.peak)
    # What the compiled module can't see: the optimizer's state and the labels.
    reserve = plain.optimizer_bytes + resident_bytes(batches[0][1])
    compiled = compile(copy.deepcopy(model), limit, reserve=reserve, time_limit=_TIME_LIMIT_S)
    within = _train(compiled, batches, lambda: advance("checkmate"))
    return Comparison(plain=plain, checkmate=within, budget=limit, solution=compiled.plans[0].solution)


def _train(model: nn.Module, batches: Sequence[Batch], advance: Callable[[], None]) -> Run:
    """An ordinary loop; every step but the first, in which the plan is made, is metered."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses: list[float] = []
    seconds: list[float] = []
    meters: list[MemoryMeter] = []
    for x, y in batches:
        advance()
        start = time.perf_counter()
        with memory_meter(model, optimizer, x, y) if losses else nullcontext() as meter:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            del loss
        seconds.append(time.perf_counter() - start)
        if meter is not None:
            meters.append(meter)
    return Run(
        losses=tuple(losses),
        step_s=float(np.median(seconds[_UNTIMED:] or seconds)),
        peak=max(meter.peak for meter in meters),
        last=meters[-1],
        optimizer_bytes=resident_bytes(optimizer),
    )

"""The same training run twice, from equal weights over equal batches: plain, and within a byte budget.

If recomputation is exact, the losses of both runs are equal. If the predicted peak is right, the live bytes
of the second run never exceed its budget. ``checkmate demo`` (:mod:`checkmate_torch.tools.commands`) shows
both.
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

from checkmate import Budget, Solution
from checkmate.errors import MissingDistributionError, install_hint
from checkmate.units import parse_budget
from checkmate_torch.api.compile import compile
from checkmate_torch.costs.meter import MemoryMeter, memory_meter, resident_bytes

__all__ = ["Comparison", "Run", "compare", "digits", "network"]

_BATCH = 16
_IMAGE = 64
_TIME_LIMIT_S = 10.0
_UNTIMED = 2
"""The number of first steps left out of the median: they plan, and allocate the optimizer's state."""
_LOSS_RTOL = 1e-4
"""Recomputation runs the same kernels on the same values, so the losses are usually equal to the last bit.
Kernels that choose the order of a sum differ in the last of 24 bits, 6e-8, and some dozens of steps may
amplify that a thousandfold; a wrong gradient changes the second loss by 1e-2 or more."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A training run.

    Attributes:
        losses: the loss of each step.
        step_s: median seconds of a step.
        peak: maximum of live bytes over all steps but the first.
        last: the memory of the last step.
        optimizer_bytes: bytes of the optimizer's state.
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


class Block(nn.Module):
    """Two 3×3 convolutions with batch norm around a shortcut (He et al., CVPR 2016, figure 2)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[n, before, h, w]`` to ``[n, after, h / stride, w / stride]``."""
        return functional.relu(self.layers(x) + self.shortcut(x))


def network(width: int = 32, stages: Sequence[int] = (3, 3, 2, 2)) -> nn.Module:
    """A residual network like ResNet-18 for images of one channel, ten classes, with seeded random weights.

    Args:
        width: channels of the first stage, doubled with every other.
        stages: the number of blocks at each resolution.
    """
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            after = width * 2**stage
            layers.append(Block(before, after, 2 if stage > 0 and block == 0 else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


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
    """Train two copies of ``model``: plainly, then within ``budget``; a share is of the plain peak.

    Args:
        model: maps images to logits; is not changed.
        batches: one for each step, at least two.
        budget: the budget of the second run.
        advance: called before each step with the name of the run.

    Raises:
        InfeasibleBudgetError: if no schedule within the budget was found.
    """
    plain = _train(copy.deepcopy(model), batches, lambda: advance("plain"))
    limit = parse_budget(budget, plain.peak)
    # The compiled module sees neither the optimizer's state nor the labels.
    reserve = plain.optimizer_bytes + resident_bytes(batches[0][1])
    compiled = compile(copy.deepcopy(model), limit, reserve=reserve, time_limit=_TIME_LIMIT_S)
    within = _train(compiled, batches, lambda: advance("checkmate"))
    return Comparison(plain=plain, checkmate=within, budget=limit, solution=compiled.plans[0].solution)


def _train(model: nn.Module, batches: Sequence[Batch], advance: Callable[[], None]) -> Run:
    """Train in an ordinary loop, and measure each step but the first, in which the plan is made."""
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

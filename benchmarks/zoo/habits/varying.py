"""Habits of steps that vary: what they have in common.

Each is a loop of thirty steps, as a user writes it, around models that a door may plan. It calls ``ended``
after each step, so that a trainer of another library can do that, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from zoo.habits.habit import OUTPUTS, Door

__all__ = [
    "LEAST",
    "STEPS",
    "VARYING",
    "Ended",
    "Varying",
    "adamw",
    "small_convolutions",
    "small_images",
    "varying",
]

STEPS = 30
LEAST = 0.0
"""Instead of a share: the least budget that the error or the warning of a lower one names."""


class Ended(Protocol):
    """Ends a step."""

    def __call__(self, *models: nn.Module, losses: Iterable[Tensor] = ()) -> None:
        """Note the losses of the step, and the models, whose tensors are compared after the last step."""


Loop = Callable[[Door, Ended], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Varying:
    """A loop whose steps vary.

    Attributes:
        loop: trains models that went through the door.
        budget: share of the largest plain peak, passed in bytes, or :data:`LEAST`; text, such as ``"50%"``,
            is passed as it is.
        changes: later steps that train other parameters than before, and so may have a new plan.
        reserve: bytes that the loop itself holds beside the planned calls, as ``reserve=`` names them.
    """

    loop: Loop
    budget: float | str
    changes: tuple[int, ...] = ()
    reserve: int = 0


VARYING: dict[str, Varying] = {}
"""Name → loop, in the order of the table."""


def varying(name: str, budget: float | str, **settings: Any) -> Callable[[Loop], Loop]:
    """Register a loop; ``settings`` are further fields of :class:`Varying`."""

    def register(loop: Loop) -> Loop:
        VARYING[name] = Varying(loop=loop, budget=budget, **settings)
        return loop

    return register


def adamw(*models: nn.Module) -> Optimizer:
    """The usual optimizer, with weight decay; a smaller ``eps`` would turn rounding into steps."""
    return AdamW([p for model in models for p in model.parameters()], lr=1e-3, eps=1e-3, weight_decay=0.1)


def small_images(size: int, pixels: int = 32, channels: int = 3) -> Tensor:
    """Random numbers."""
    return torch.randn(size, channels, pixels, pixels)


def small_convolutions() -> nn.Sequential:
    """Eight convolutions and a linear layer."""
    layers = (x for i in (3, *[16] * 7) for x in (nn.Conv2d(i, 16, 3, padding=1), nn.ReLU()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, OUTPUTS))

"""Optimizers by name, and the bytes that one holds: its state, and the temporaries of its step."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from checkmate import BudgetError
from checkmate_torch.memory.live_bytes import LiveBytes
from checkmate_torch.ops.device import counts_as_cuda
from checkmate_torch.optimizer.meta_step import on_meta
from checkmate_torch.optimizer.separable import step_alone
from checkmate_torch.optimizer.state import state_bytes
from checkmate_torch.private import unfaked

__all__ = ["MakeOptimizer", "UpdateBytes", "named_optimizer", "settings_in", "update_bytes"]

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
"""Makes the optimizer of some parameters."""

_OPTIMIZERS = {
    name.lower(): made
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, Optimizer) and made is not Optimizer
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBytes:
    """The bytes that an optimizer needs.

    Attributes:
        state: kept from the first step on.
        workspace: temporaries at the worst moment of a later step.
    """

    state: int = 0
    workspace: int = 0


def update_bytes(optimizer: Optimizer) -> UpdateBytes:
    """Predict the bytes of an optimizer by two steps of a copy that has shapes and no memory.

    Where a group leaves ``foreach`` open, PyTorch updates all parameters at once on CUDA, with temporaries as
    large as all of them, and one after another on the CPU. A ``fused`` update has none.

    Args:
        optimizer: is not changed. Where a device to plan for was chosen, its parameters count as there.

    Raises:
        BudgetError: if the optimizer can't take such a step, e.g. because it wants a closure.
    """
    groups = optimizer.param_groups
    try:
        with unfaked():
            twin = on_meta(optimizer)
            for group, given in zip(twin.param_groups, groups, strict=True):
                if "foreach" in group:
                    group["foreach"] = _is_foreach(optimizer, given)
            with LiveBytes(reads_ones=True):
                step_alone(twin)
            with LiveBytes(reads_ones=True) as second:
                step_alone(twin)
    except Exception as error:
        raise BudgetError(
            f"how many bytes {type(optimizer).__name__} takes can't be predicted: {error}"
        ) from error
    is_fused = all(group.get("fused") for group in groups)
    return UpdateBytes(state=state_bytes(twin), workspace=0 if is_fused else second.peak)


def named_optimizer(text: str) -> MakeOptimizer:
    """The optimizer of ``torch.optim`` with a name and settings, as ``"adamw"`` or ``"sgd,momentum=0.9"``.

    Raises:
        ValueError: if torch.optim has no such optimizer, or a setting can't be read.
        TypeError: when the optimizer is made, if it lacks a setting.
    """
    name, _, rest = text.partition(",")
    made: Any = _OPTIMIZERS.get(name.strip().lower())
    if made is None:
        close = difflib.get_close_matches(name.lower(), _OPTIMIZERS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(_OPTIMIZERS))}"
        raise ValueError(f"torch.optim has no optimizer {name!r}: {hint}")
    settings = settings_in(rest)
    return lambda parameters: made(parameters, **settings)


def settings_in(text: str) -> dict[str, Any]:
    """Read settings as ``name=value``, separated by commas.

    >>> settings_in("r=16,targets=q_proj+v_proj,momentum=0.9,nesterov=True")
    {'r': 16, 'targets': 'q_proj+v_proj', 'momentum': 0.9, 'nesterov': True}

    Raises:
        ValueError: if a part of it is not ``name=value``.
    """
    settings: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{part!r} is no setting: write name=value, and a comma between settings")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def _is_foreach(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether PyTorch updates all parameters of a group at once."""
    given = group["foreach"]
    if given is not None or group.get("fused") or group.get("differentiable"):
        return bool(given)
    on_cuda = all(counts_as_cuda(p.device) for p in group["params"])
    return on_cuda and not isinstance(optimizer, torch.optim.Adafactor)  # which saves memory instead

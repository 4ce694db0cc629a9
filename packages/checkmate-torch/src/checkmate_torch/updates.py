"""One parameter's share of an optimizer step: (p, state) ← update(p, ∇p, state), run by the optimizer itself.

Most optimizers treat each parameter alone, so that a step is a product of such updates, and each may run as
soon as its gradient has been computed. An update calls the ``step`` of the user's optimizer as it is (loop,
``foreach`` or ``fused``), with one parameter in its group. So learning rates are read when it runs, the state
is kept in its usual place, and the bits are the same.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from checkmate import CheckmateError
from checkmate.cost import OpProfile
from checkmate_torch.private import unfaked
from checkmate_torch.profile import profile_op

__all__ = [
    "SEPARABLE",
    "ParameterUpdate",
    "UnsupportedOptimizerError",
    "Updates",
    "settings_of",
]

SEPARABLE: tuple[type[Optimizer], ...] = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Adagrad,
    optim.Adadelta,
)
"""Optimizers that treat each parameter alone and don't overwrite gradients; subclasses don't count."""

_SCHEDULED = frozenset({"params", "lr", "initial_lr"})


class UnsupportedOptimizerError(CheckmateError, NotImplementedError):
    """The optimizer can't update one parameter at a time, or holds parameters of another model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Updates:
    """The updates of an optimizer, one for each parameter.

    Attributes:
        optimizer: the user's.
        max_norm: maximum norm of all gradients together, to which larger ones are scaled; None = no maximum.

    Raises:
        UnsupportedOptimizerError: if the optimizer can't be split.
    """

    optimizer: Optimizer
    max_norm: float | None = None
    _worker: Optimizer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse an optimizer that can't be split."""
        name = type(self.optimizer).__name__
        if type(self.optimizer) not in SEPARABLE:
            known = ", ".join(sorted(kind.__name__ for kind in SEPARABLE))
            raise UnsupportedOptimizerError(
                f"{name} is not known to treat each parameter alone; {known} are. Use "
                "checkmate.torch.compile(model, budget) and call optimizer.step() yourself"
            )
        if any(group.get("differentiable") for group in self.optimizer.param_groups):
            raise UnsupportedOptimizerError(
                f"{name} has differentiable=True, but updates in place can't be differentiated: set it to "
                "False, or use checkmate.torch.compile(model, budget) and call optimizer.step() yourself"
            )
        # A copy runs no hooks, and changes of its attributes don't reach the user's optimizer.
        object.__setattr__(self, "_worker", copy.copy(self.optimizer))

    def of(self, parameter: nn.Parameter) -> ParameterUpdate | None:
        """The update of a parameter; None if the optimizer does not hold it."""
        for k, group in enumerate(self.optimizer.param_groups):
            for n, held in enumerate(group["params"]):
                if held is parameter:
                    return ParameterUpdate(updates=self, parameter=parameter, place=(k, n))
        return None

    def coefficient(self, gradients: list[Tensor]) -> Tensor:
        """The factor that scales every gradient, as ``torch.nn.utils.clip_grad_norm_`` computes it."""
        if self.max_norm is None:
            raise ValueError("there is no factor without max_norm")
        norm = torch.nn.utils.get_total_norm(gradients)
        return torch.clamp(self.max_norm / (norm + 1e-6), max=1.0)

    def run(self, parameter: nn.Parameter, gradient: Tensor, group: int) -> None:
        """Step the optimizer for one parameter of a group."""
        worker = self._worker
        worker.state = self.optimizer.state
        worker.param_groups = [{**self.optimizer.param_groups[group], "params": [parameter]}]
        parameter.grad = gradient
        try:
            worker.step()
        finally:
            parameter.grad = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ParameterUpdate:
    """The update of one parameter: a function that generated code calls.

    Attributes:
        updates: of the optimizer.
        parameter: the parameter.
        place: where the optimizer holds it: index of the group, index within the group.
    """

    updates: Updates
    parameter: nn.Parameter
    place: tuple[int, int]
    __name__: ClassVar[str] = "update"

    def __call__(self, _parameter: Tensor, gradient: Tensor, coefficient: Tensor | None = None) -> None:
        """Update the parameter and its state in place.

        Args:
            gradient: in the parameter's shape.
            coefficient: factor of the gradient; None = 1.
        """
        scaled = gradient if coefficient is None else gradient * coefficient
        self.updates.run(self.parameter, scaled, self.place[0])

    @property
    def layout(self) -> Hashable:
        """The properties that decide the cost: parameters with the same layout share a profile."""
        p = self.parameter
        return self.place[0], p.shape, p.stride(), p.dtype, p.device, p in self.updates.optimizer.state

    def profile(self) -> OpProfile:
        """Seconds and workspace, measured by updating a copy of the parameter.

        Raises:
            ProfilerBusyError: inside another profiler (CPU only).
        """
        optimizer, device = self.updates.optimizer, self.parameter.device
        devices = [device] if device.type == "cuda" else []
        with unfaked(), torch.random.fork_rng(devices):
            parameter = nn.Parameter(torch.randn_like(self.parameter))
            gradient = torch.randn_like(self.parameter)
            scale = None if self.updates.max_norm is None else torch.ones((), device=device)
            twin = copy.copy(optimizer)
            twin.state = defaultdict(dict)
            if self.parameter in optimizer.state:
                twin.state[parameter] = copy.deepcopy(optimizer.state[self.parameter])
            twin.param_groups = [{**optimizer.param_groups[self.place[0]], "params": [parameter]}]
            updates = Updates(optimizer=twin, max_norm=self.updates.max_norm)
            update = ParameterUpdate(updates=updates, parameter=parameter, place=(0, 0))
            update(parameter, gradient, scale)  # the first update makes the state
            return profile_op(partial(update, parameter, gradient, scale), device)


def settings_of(optimizer: Optimizer) -> Hashable:
    """The settings that decide the memory of an optimizer's updates: its parameters and its terms."""
    return tuple(
        (
            tuple(map(id, group["params"])),
            *((k, isinstance(v, Tensor) or bool(v)) for k, v in group.items() if k not in _SCHEDULED),
        )
        for group in optimizer.param_groups
    )

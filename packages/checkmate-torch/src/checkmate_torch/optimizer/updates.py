"""One parameter's share of an optimizer step: (p, state) ← update(p, ∇p, state), run by the optimizer itself.

Most optimizers treat each parameter alone, so that a step is a product of such updates, and each may run as
soon as its gradient has been computed. An update calls the ``step`` of the user's optimizer as it is (loop,
``foreach`` or ``fused``), with one parameter in its group. So learning rates are read when it runs, the state
is kept in its usual place, and the bits are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from checkmate.cost import OpProfile
from checkmate.framework import by_bytes
from checkmate_torch.costs.profile import profile_op
from checkmate_torch.memory.live_bytes import LiveBytes
from checkmate_torch.ops.storages import storages_of
from checkmate_torch.optimizer.meta_step import on_meta
from checkmate_torch.optimizer.separable import OneParameterStep, copied, overwrites_gradients
from checkmate_torch.private import unfaked

__all__ = ["Accumulation", "ParameterUpdate", "Updates", "settings_of"]

_SCHEDULED = frozenset({"params", "lr", "initial_lr"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Updates:
    """The updates of an optimizer, one for each parameter.

    Attributes:
        optimizer: the user's.
        max_norm: maximum norm of all gradients together, to which larger ones are scaled; None = no maximum.
        accumulate: the number of calls whose gradients are added up before an update.
        scaler: scales the loss, and skips updates with gradients that are not finite; None = no scaler.
        overwrites: whether the optimizer overwrites gradients; None = find out.
        one_step: the optimizer's step for one parameter.

    Raises:
        UnsupportedOptimizerError: if the optimizer can't be split.
        ValueError: if ``accumulate`` is less than 1.
    """

    optimizer: Optimizer
    max_norm: float | None = None
    accumulate: int = 1
    scaler: GradScaler | None = None
    overwrites: bool | None = None
    one_step: OneParameterStep = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse an optimizer that can't be split."""
        if self.accumulate < 1:
            raise ValueError(
                f"accumulate is the number of calls before an update, at least 1, not {self.accumulate}"
            )
        if self.overwrites is None:
            object.__setattr__(self, "overwrites", overwrites_gradients(self.optimizer))
        object.__setattr__(self, "one_step", OneParameterStep(self.optimizer))

    def of(self, parameter: nn.Parameter) -> ParameterUpdate | None:
        """The update of a parameter; None if the optimizer does not hold it."""
        for k, group in enumerate(self.optimizer.param_groups):
            for n, held in enumerate(group["params"]):
                if held is parameter:
                    return ParameterUpdate(updates=self, parameter=parameter, place=(k, n))
        return None

    @property
    def are_last(self) -> bool:
        """Whether all updates follow the last gradient, which is then kept like all others."""
        return self.accumulate > 1 or self.scaler is not None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups, for GradScaler: we pass it these updates in the place of an optimizer."""
        return self.optimizer.param_groups

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        first: nn.Parameter = next(p for group in self.param_groups for p in group["params"])
        return first.device

    def scale(self) -> Tensor | None:
        """The factor of the loss, on the device of the parameters; None without a scaler."""
        if self.scaler is None:
            return None
        return self.scaler.scale(torch.ones((), device=self.device))

    def finish(self) -> None:
        """Update from the gradients that the parameters hold, as the last lines of a training loop do."""
        if self.scaler is not None:
            self.scaler.unscale_(self)  # type: ignore[arg-type]
        if self.max_norm is not None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        if self.scaler is not None:
            self.scaler.step(self)  # type: ignore[arg-type]  # it calls step, or skips it
            self.scaler.update()
        else:
            self.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update each parameter from its gradient, which is freed; then step without gradients.

        That step is for the optimizer's hooks, and for schedulers that count the steps.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.one_step(group, parameter, parameter.grad)
        self.optimizer.step()

    def written(self, parameters: Collection[nn.Parameter]) -> list[Tensor]:
        """The tensors that updates of these parameters write: the parameters and their states."""
        states = (self.optimizer.state.get(p) for p in parameters)
        values = (x for state in states if isinstance(state, Mapping) for x in state.values())
        return [*parameters, *(x for x in values if isinstance(x, Tensor))]

    def coefficient(self, gradients: list[Tensor]) -> Tensor:
        """The factor that scales every gradient, as ``torch.nn.utils.clip_grad_norm_`` computes it."""
        norm = torch.nn.utils.get_total_norm(gradients)
        return torch.clamp(cast(float, self.max_norm) / (norm + 1e-6), max=1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Accumulation:
    """Adds a gradient to the one that a parameter holds: a function that generated code calls."""

    parameter: nn.Parameter
    __name__: ClassVar[str] = "accumulation"

    def __call__(self, gradient: Tensor) -> None:
        """Add it, or keep a copy of it if the parameter holds none."""
        if self.parameter.grad is None:
            self.parameter.grad = torch.empty_like(self.parameter).copy_(gradient)
        else:
            self.parameter.grad.add_(gradient)


@dataclass(frozen=True, kw_only=True, eq=False)
class ParameterUpdate:
    """The update of one parameter: a function that generated code calls.

    Attributes:
        updates: the optimizer's updates.
        parameter: the parameter.
        place: where the optimizer holds it: index of the group, index within the group.
    """

    updates: Updates
    parameter: nn.Parameter
    place: tuple[int, int]
    __name__: ClassVar[str] = "update"

    def __call__(self, _parameter: Tensor, gradient: Tensor, coefficient: Tensor | None = None) -> None:
        """Update the parameter and its state in place, from the gradient times the coefficient, None = 1."""
        scaled = gradient if coefficient is None else gradient * coefficient
        given = scaled.clone() if self.updates.overwrites else scaled
        self.updates.one_step(self.updates.param_groups[self.place[0]], self.parameter, given)

    @property
    def layout(self) -> Hashable:
        """The properties that decide the cost: parameters with the same layout share a profile."""
        p = self.parameter
        return self.place[0], p.shape, p.stride(), p.dtype, p.device, p in self.updates.optimizer.state

    def profile(self) -> OpProfile:
        """Seconds and workspace, measured by updating a made-up parameter in the layout of this one."""
        optimizer, device = self.updates.optimizer, self.parameter.device
        devices = [device] if device.type == "cuda" else []
        with unfaked(), torch.random.fork_rng(devices):
            shape, stride, kind = self.parameter.shape, self.parameter.stride(), self.parameter.dtype
            numbers, gradient = (
                torch.empty_strided(shape, stride, dtype=kind, device=device).normal_() for _ in range(2)
            )
            parameter = nn.Parameter(numbers)
            scale = None if self.updates.max_norm is None else torch.ones((), device=device)
            twin = copied(optimizer, {id(self.parameter): parameter})
            if self.parameter in optimizer.state:
                twin.state[parameter] = copy.deepcopy(optimizer.state[self.parameter])
            twin.param_groups = [{**twin.param_groups[self.place[0]], "params": [parameter]}]
            updates = replace(self.updates, optimizer=twin)
            update = ParameterUpdate(updates=updates, parameter=parameter, place=(0, 0))
            update(parameter, gradient, scale)  # the first update makes the state
            return profile_op(partial(update, parameter, gradient, scale), device)

    def counted(self) -> OpProfile:
        """Seconds to move the bytes of parameter, gradient and state, and the workspace; nothing is run.

        The workspace is counted for PyTorch's loop over parameters, not for ``foreach`` or ``fused``.
        """
        with unfaked():
            k, n = self.place
            twin = on_meta(self.updates.optimizer)
            group = twin.param_groups[k]
            parameter = group["params"][n]
            gradient = torch.empty_like(parameter)
            update = ParameterUpdate(
                updates=replace(self.updates, optimizer=twin), parameter=parameter, place=self.place
            )
            scale = None if self.updates.max_norm is None else torch.ones((), device="meta")
            with LiveBytes(reads_ones=True):
                update(parameter, gradient, scale)  # the first update makes the state
            with LiveBytes(reads_ones=True) as run:
                update(parameter, gradient, scale)
            moved = storages_of([parameter, gradient, twin.state[parameter]]).values()
            seconds = by_bytes(sum(storage.nbytes() for storage in moved)).seconds
            return OpProfile(seconds=seconds, workspace=run.peak)


def settings_of(optimizer: Optimizer) -> Hashable:
    """The settings that decide the memory of an optimizer's updates: parameters, and which options are on."""
    return tuple(
        (
            tuple(map(id, group["params"])),
            *((k, isinstance(v, Tensor) or bool(v)) for k, v in group.items() if k not in _SCHEDULED),
        )
        for group in optimizer.param_groups
    )

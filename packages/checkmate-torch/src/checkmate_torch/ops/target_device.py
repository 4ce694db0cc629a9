"""The device to plan for, which need not be here: its tensors are fake, its figures are those of a table.

A CUDA build of PyTorch traces fake tensors of the device ``cuda`` on any machine. Another build traces those
of the CPU, and bytes are counted as CUDA's allocator gives them out, in blocks of 512.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch

from checkmate import CostError
from checkmate.cost import DEVICES, device_named
from checkmate.framework import AUTO, HEADROOM
from checkmate_torch.private import fakes_cuda, without_gpu

__all__ = ["Target", "counts_as_cuda", "current_target", "for_target"]

_log = logging.getLogger(__name__)
_CONTEXT = 2**30
"""Bytes of a CUDA device that tensors can't have: the CUDA context, and the kernels that libraries load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device to plan for.

    Attributes:
        name: of the device in :data:`checkmate.cost.DEVICES`; None = a device of this machine.
        device: of the traced tensors.
    """

    name: str | None
    device: torch.device

    @classmethod
    def parse(cls, device: str | torch.device | None) -> Self | None:
        """Read the setting ``device``; None = the device of the model.

        Raises:
            CostError: if the table lacks the device, or a GPU of this machine is meant and there is none.

        >>> Target.parse("cuda:H100-80GB").name, Target.parse("h100-80gb").name, Target.parse("cpu").name
        ('H100-80GB', 'H100-80GB', None)
        """
        if device is None:
            return None
        kind, _, index = str(device).partition(":")
        if kind == "cpu":
            return cls(name=None, device=torch.device("cpu"))
        if kind == "cuda" and (not index or index.isdecimal()):
            if not torch.cuda.is_available():
                raise CostError(
                    f"device={str(device)!r}, but PyTorch finds no GPU here: name the one to plan for, "
                    f"device='cuda:NAME' with NAME of {list(DEVICES)}"
                )
            return cls(name=None, device=torch.device("cuda", int(index or torch.cuda.current_device())))
        name = device_named(
            str(device).removeprefix("cuda:"),
            otherwise="name the nearest one, and give a budget in bytes",
        )
        return cls(name=name, device=torch.device("cuda:0" if fakes_cuda() else "cpu"))

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability of a device of the table; None = PyTorch asks the device itself."""
        return None if self.name is None else DEVICES[self.name].capability

    def settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """Settings with this device's defaults; of a device of this machine, the settings as they are.

        The costs of a device of the table are its roofline's. The budget ``"auto"`` is its capacity, less one
        GiB for the CUDA context and the code of libraries, less a tenth of the rest, as for devices of this
        machine, for fragmentation and other processes.

        Raises:
            CostError: if ops are to be measured on a device of the table.
        """
        if self.name is None:
            return given
        roofline = f"roofline-{self.name}"
        model = given.get("cost_model", roofline)
        if model == "profiled" or given.get("workspaces"):
            raise CostError(
                f"costs and workspaces can't be measured for device={self.name!r}, which is only a name in a "
                f"table: leave workspaces out, and take cost_model={roofline!r} (the default) or 'flops'"
            )
        settings = {**given, "cost_model": roofline if model == "roofline" else model}
        if given.get("budget") == AUTO:
            settings["budget"] = int((DEVICES[self.name].memory_bytes - _CONTEXT) * (1 - HEADROOM))
        return settings

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Within the block, captured code and counted bytes are this device's."""
        if self.name is not None and self.device.type == "cpu":
            _warn_of_build()
        token = _current.set(self)
        try:
            with without_gpu(self.device):
                yield
        finally:
            _current.reset(token)


def for_target(target: Target | None) -> AbstractContextManager[None]:
    """Context manager: code that is captured in the block is for a device; None = for that of its tensors."""
    return nullcontext() if target is None else target.tracing()


@cache
def _warn_of_build() -> None:
    _log.warning(
        "this build of PyTorch has no CUDA: steps for a GPU are traced with the CPU's kernels, and bytes "
        "are rounded as on CUDA. A CUDA build traces CUDA's kernels, on a machine without a GPU too"
    )


_current: ContextVar[Target | None] = ContextVar("target", default=None)


def current_target() -> Target | None:
    """The device that a step is being traced for, if that was chosen."""
    return _current.get()


def counts_as_cuda(device: torch.device) -> bool:
    """Whether bytes of tensors on a device are those that CUDA's allocator gives out."""
    target = _current.get()
    return device.type == "cuda" or (target is not None and target.name is not None)

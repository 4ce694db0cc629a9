"""The device that a step runs on, or is planned for: its memory, its name, and a GPU that is not here.

For a GPU that this machine lacks, tensors of the CPU are traced instead. Bytes are counted as CUDA's
allocator gives them out, in blocks of 512; the GPU's speed and memory come from a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import torch

from checkmate import CostError, UnsupportedModelError
from checkmate.cost import DEVICES, device_named, processor
from checkmate.framework import AUTO, HEADROOM, available_memory, unknown_memory
from checkmate_torch.private import autocast_on_cpu

__all__ = [
    "Target",
    "counts_as_cuda",
    "cpu_represents_gpu",
    "current_target",
    "for_target",
    "machine_of",
    "obtainable_bytes",
    "refuse_graph_capture",
    "usable_bytes",
]

_CONTEXT = 2**30
"""Bytes of a CUDA device that tensors can't have: the CUDA context, and the kernels that libraries load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device to plan for.

    Attributes:
        name: name of the device in :data:`checkmate.cost.DEVICES`; None = a device of this machine.
        device: where traced tensors are; the CPU for a device of the table if there is no GPU here.
    """

    name: str | None
    device: torch.device

    @classmethod
    def parse(cls, device: str | torch.device | None) -> Self | None:
        """Read the setting ``device``; None = the device of the model.

        Raises:
            CostError: if the table lacks the device, or a GPU of this machine is meant and there is no GPU.

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
        return cls(name=name, device=torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability of a device of the table; None = PyTorch asks the device itself."""
        return None if self.name is None else DEVICES[self.name].capability

    def settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """Settings with this device's defaults. For a device of this machine they are returned unchanged.

        A device of the table gets its roofline as cost model. Its budget ``"auto"`` is its capacity, less one
        GiB for the CUDA context and the code of libraries, less a tenth of the rest for fragmentation and
        other processes, as for devices of this machine.

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
            settings["budget"] = usable_bytes(DEVICES[self.name].memory_bytes)
        return settings

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Within the block, captured code and counted bytes are this device's."""
        token = _current.set(self)
        try:
            with autocast_on_cpu() if cpu_represents_gpu() else nullcontext():
                yield
        finally:
            _current.reset(token)


def usable_bytes(capacity: int) -> int:
    """The budget ``"auto"`` of a CUDA device with this capacity, in bytes."""
    return int((capacity - _CONTEXT) * (1 - HEADROOM))


def for_target(target: Target | None) -> AbstractContextManager[None]:
    """Context manager: code in the block is captured for a device; None = for the device of its tensors."""
    return nullcontext() if target is None else target.tracing()


_current: ContextVar[Target | None] = ContextVar("target", default=None)


def current_target() -> Target | None:
    """The device that a step is being traced for; None if no device was chosen."""
    return _current.get()


def cpu_represents_gpu() -> bool:
    """Whether tensors of the CPU represent those of a GPU that is not here."""
    target = _current.get()
    return target is not None and target.name is not None and target.device.type == "cpu"


def counts_as_cuda(device: torch.device) -> bool:
    """Whether bytes of tensors on a device are counted in the blocks of CUDA's allocator."""
    target = _current.get()
    return device.type == "cuda" or (target is not None and target.name is not None)


def machine_of(device: torch.device) -> dict[str, str]:
    """What decides how long an op takes, besides the op: device, release of PyTorch, threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {"device": name, "torch": str(torch.__version__), "threads": str(torch.get_num_threads())}


def obtainable_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on a device.

    On CUDA: the free memory of the device, and the memory that PyTorch's allocator has reserved and not given
    out. On the CPU of a Linux system: :func:`checkmate.framework.available_memory`.

    Raises:
        BudgetError: on other devices and systems.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if device.type != "cpu":
        raise unknown_memory(device)
    return available_memory()


def refuse_graph_capture() -> None:
    """Raise UnsupportedModelError if the current stream is being captured as a CUDA graph."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        raise UnsupportedModelError(
            "a planned step can't be captured as a CUDA graph: recomputation restores the state of the "
            "random generator, which a captured stream can't do, and the graph keeps its memory for ever. "
            "Call the model outside of torch.cuda.graph, or capture the plain model"
        )

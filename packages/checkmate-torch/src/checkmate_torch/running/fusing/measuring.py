"""Measure kernels, and keep those that work and are faster than their ops run one by one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkmate import DFGraph, OnProgress, Progress
from checkmate.cost import OpProfile
from checkmate_torch.costs.price import measured_by_device
from checkmate_torch.distributed.ranks import Ranks, profiled_together
from checkmate_torch.running.fusing.kernel import FusedKernel

__all__ = ["Measuring", "seconds_alone"]

_LEAST_S = 5e-5
"""Seconds: a kernel whose ops take less in all is not compiled, as it could not gain more."""


def seconds_alone(graph: DFGraph, ops: Sequence[int]) -> float:
    """Seconds of these ops run one by one; infinite if the graph's costs are not in seconds."""
    return sum(graph.ops[v].cost for v in ops) if graph.cost_unit == "s" else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How kernels are measured.

    Attributes:
        on_disk: whether measured kernels are read from disk and kept there.
        on_progress: called before each distinct kernel that is measured.
        ranks: the ranks that plan together; rank 0 measures for all. None = this process plans alone.
    """

    on_disk: bool = True
    on_progress: OnProgress | None = None
    ranks: Ranks | None = None

    def worthy(self, graph: DFGraph, kernels: Sequence[FusedKernel]) -> list[OpProfile | None]:
        """The profile of each kernel; None if it is unusable, or no faster than its ops in ``graph``."""
        names = [str(kernel) for kernel in kernels]
        found = profiled_together(self.ranks, names, lambda: self._worthy(graph, kernels))
        pairs = zip(kernels, found, strict=True)
        return [profile if profile is not None and kernel.is_usable() else None for kernel, profile in pairs]

    def _worthy(self, graph: DFGraph, kernels: Sequence[FusedKernel]) -> list[OpProfile | None]:
        alone = [seconds_alone(graph, kernel.ops) for kernel in kernels]
        pairs = zip(kernels, alone, strict=True)
        usable = self._usable({str(k): k for k, seconds in pairs if seconds > _LEAST_S and k.sources})
        profiles = measured_by_device(
            usable,
            lambda kernel: kernel.device,
            FusedKernel.profile,
            name=lambda kernel: f"{len(kernel.ops)} fused ops",
            on_disk=self.on_disk,
            on_progress=self.on_progress,
        )
        known = (profiles[name] if (name := str(kernel)) in usable else None for kernel in kernels)
        return [p if p is not None and p.seconds < s else None for p, s in zip(known, alone, strict=True)]

    def _usable(self, kernels: Mapping[str, FusedKernel]) -> dict[str, FusedKernel]:
        """The kernels, of these distinct ones, that can be compiled and work."""
        started = time.monotonic()
        found = {}
        for k, (name, kernel) in enumerate(kernels.items()):
            if self.on_progress is not None:
                step = f"compiling kernel {k + 1} of {len(kernels)}"
                self.on_progress(Progress(None, 0.0, time.monotonic() - started, step))
            if kernel.is_usable():
                found[name] = kernel
        return found

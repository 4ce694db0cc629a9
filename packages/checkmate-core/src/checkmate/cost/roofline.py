"""The roofline: an op takes as long as its arithmetic, or as its memory traffic, whichever is longer.

    c(v) = max( flops(v) / P , bytes(v) / B ) + launch

P is the peak FLOP/s, B the memory bandwidth, bytes(v) the sizes of what v reads and makes. Source: Williams,
Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures",
Communications of the ACM 52(4), 2009.

It is optimistic: no kernel reaches the peaks, a kernel may read an operand several times, workspace isn't
counted, and an op may be several kernels. It overestimates only ops that read a part of an operand (an
embedding reads some rows of its table) or find it in a cache. The *ratio* of the costs of two schedules is
more accurate than the costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from checkmate.cost.devices import DEVICES, device_named
from checkmate.cost.measured import MeasuredOps, OpProfile
from checkmate.cost.pricing import positive, with_costs
from checkmate.errors import CostError
from checkmate.model.graph import CSR, DFGraph

__all__ = ["Roofline", "in_formats", "measured_roofline"]

_SIDE = 768
"""Rows of the square matrices whose product measures the peak arithmetic."""
_MOVED = 2**26
"""Bytes that the pass over memory reads; it writes the same number."""
_RUNS = 5
"""Runs of each measurement; the fastest counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds from FLOPs, bytes, and the peaks of a device.

    Attributes:
        flops_per_s: peak arithmetic, > 0.
        bytes_per_s: peak memory bandwidth, > 0.
        launch_s: seconds added for every op; a few microseconds on GPUs.

    Raises:
        CostError: if a rate is not a finite number > 0, or ``launch_s`` not a finite number ≥ 0.

    >>> graph = DFGraph.from_nodes(cost=[8e12, 1e6], size=[10**9, 10**9], deps=[[], [0]], cost_unit="flop")
    >>> timed = Roofline(flops_per_s=4e12, bytes_per_s=1e12).annotate(graph)
    >>> [op.cost for op in timed.ops], timed.cost_unit
    ([2.0, 0.002], 's')
    """

    flops_per_s: float
    bytes_per_s: float
    launch_s: float = 0.0

    def __post_init__(self) -> None:
        positive(self.flops_per_s, "flops_per_s")
        positive(self.bytes_per_s, "bytes_per_s")
        if self.launch_s != 0:
            positive(self.launch_s, "launch_s (seconds), if not 0,")

    @classmethod
    def of(cls, device: str, dtype: str = "fp32", *, launch_s: float = 0.0) -> Self:
        """The roofline of a device of the table :data:`~checkmate.cost.DEVICES`.

        Args:
            device: its name, for example ``"A100-80GB"``.
            dtype: number format of the arithmetic: ``"fp32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"``.
            launch_s: as in the class.

        Raises:
            CostError: if the table lacks the device, or the device the format.

        >>> Roofline.of("A100-80GB", "bf16")
        Roofline(flops_per_s=312000000000000.0, bytes_per_s=2039000000000.0, launch_s=0.0)
        """
        known = DEVICES[device_named(device, otherwise="give Roofline flops_per_s and bytes_per_s")]
        if dtype not in known.flops_per_s:
            raise CostError(f"no figure for dtype {dtype!r} on {device!r}: {list(known.flops_per_s)}")
        return cls(flops_per_s=known.flops_per_s[dtype], bytes_per_s=known.bytes_per_s, launch_s=launch_s)

    @classmethod
    def nearest(cls, device: str, dtype: str) -> Self:
        """As :meth:`of`; for a format without hardware support on the device, the figure of ``fp32``.

        Raises:
            CostError: if the table lacks the device.

        >>> Roofline.nearest("V100-16GB", "bf16") == Roofline.of("V100-16GB", "fp32")
        True
        """
        known = next((d for name, d in DEVICES.items() if name.lower() == device.lower()), None)
        return cls.of(device, dtype if known is None or dtype in known.flops_per_s else "fp32")

    def annotate(self, graph: DFGraph) -> DFGraph:
        """The graph with its costs in seconds.

        Raises:
            CostError: if the graph's costs are not in ``"flop"``.
        """
        if graph.cost_unit != "flop":
            raise CostError(
                f"a roofline needs costs in 'flop', those of {graph!r} are in {graph.cost_unit!r}: "
                "trace with FLOPs as costs, or set cost_unit='flop' if they are FLOPs"
            )
        moved = _moved(graph, graph.reads) + _moved(graph, graph.makes)
        seconds = np.maximum(graph.costs / self.flops_per_s, moved / self.bytes_per_s) + self.launch_s
        return with_costs(graph, seconds.tolist(), "s")


def _moved(graph: DFGraph, tensors: CSR) -> npt.NDArray[np.float64]:
    """Bytes of each op's tensors."""
    sizes = graph.sizes[tensors.indices]
    return np.bincount(tensors.rows, weights=sizes, minlength=graph.n_ops).astype(np.float64)


def in_formats(
    counted: DFGraph, formats: Sequence[str | None], roofline: Callable[[str], Roofline]
) -> DFGraph:
    """A graph whose costs are FLOPs, priced in seconds by the roofline of each op's number format.

    An op whose format is None costs 0.

    >>> counted = DFGraph.from_nodes(cost=[8.0, 8.0], size=[0, 0], deps=[[], [0]], cost_unit="flop")
    >>> timed = in_formats(counted, ["fp32", None], lambda form: Roofline(flops_per_s=4, bytes_per_s=1))
    >>> [op.cost for op in timed.ops], timed.cost_unit
    ([2.0, 0.0], 's')
    """
    found = dict.fromkeys(form for form in formats if form is not None)
    priced = {form: roofline(form).annotate(counted) for form in found}
    costs = (0.0 if form is None else priced[form].ops[v].cost for v, form in enumerate(formats))
    return with_costs(counted, costs, "s")


def measured_roofline(
    table: MeasuredOps,
    moving: str,
    ready: Callable[[int, int], tuple[Callable[[], object], Callable[[], object]]],
    *,
    on_disk: bool,
) -> Roofline:
    """The float32 peaks of a machine, measured.

    Args:
        table: the measurements of this machine.
        moving: the words for the pass over memory in the table's keys.
        ready: (rows, numbers) ↦ two functions that are timed: a product of two ``rows`` × ``rows`` matrices,
            and a pass over ``numbers`` numbers.
        on_disk: read the table from disk, and add new measurements to it.
    """
    product, moved = f"product of float32 matrices, {_SIDE} square", f"{moving} of {_MOVED} bytes"
    known = table.known() if on_disk else {}
    if not known.keys() >= {product, moved}:
        runs = zip((product, moved), ready(_SIDE, _MOVED // 4), strict=True)
        known = {name: OpProfile(seconds=_fastest(run), workspace=0) for name, run in runs}
        if on_disk:
            table.add(known)
    return Roofline(
        flops_per_s=2 * _SIDE**3 / known[product].seconds, bytes_per_s=2 * _MOVED / known[moved].seconds
    )


def _fastest(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)

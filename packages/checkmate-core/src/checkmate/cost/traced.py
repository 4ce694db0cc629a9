"""The roofline of a traced graph: each op at the peak of the number format that it computes in.

The peaks of a device come from the table. Those of the CPU of this process, which is in no table, are
measured by the framework package: one product of matrices, and one pass over memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from checkmate.cost.measured import MeasuredOps, OpProfile
from checkmate.cost.pricing import with_costs
from checkmate.cost.roofline import Roofline
from checkmate.model.graph import DFGraph

__all__ = ["in_formats", "measured_roofline"]

_SIDE = 768
_MOVED = 2**26
"""Bytes that the pass over memory reads; it writes the same number."""
_RUNS = 5


def in_formats(
    counted: DFGraph, formats: Sequence[str | None], roofline: Callable[[str], Roofline]
) -> DFGraph:
    """A graph whose costs are FLOPs, priced in seconds.

    Args:
        counted: the graph; its cost unit is ``"flop"``.
        formats: the number format of each op; None = the op costs 0.
        roofline: the function from a format to its roofline.

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
        moving: the name in the table of the pass over memory.
        ready: (rows, numbers) ↦ two functions, a product of two ``rows`` × ``rows`` matrices and a pass over
            ``numbers`` numbers, which are run a few times; called if one of them is not in the table.
        on_disk: True = the table is read from disk, and new measurements are added to it.
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

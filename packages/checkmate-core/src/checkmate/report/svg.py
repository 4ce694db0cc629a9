"""Memory over time as inline SVG, drawn without any library.

Colours come from the page's style sheet by class, and suit light and dark pages. The picture shows at most
``GROUPS`` steps in time: more runs are drawn in groups, each as its highest run, so that every peak shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.problem.reading import Phase, Reading
from checkmate.text.markup import escaped
from checkmate.text.printable import byte_unit, clipped
from checkmate.units import format_bytes

__all__ = ["GROUPS", "KINDS", "MemoryDrawing"]

GROUPS = 2000
KINDS = ("base", "activations", "gradients", "workspace")
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 948, 26, 300
_RIBBON = 9


class _Frame(NamedTuple):
    """The plotting area: the values at its right edge and at its top; left and bottom are zero."""

    high: float
    top: float

    def x(self, value: float) -> float:
        return _LEFT + value / self.high * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        return _BOTTOM - value / self.top * (_BOTTOM - _TOP)

    def axes(self, x_label: str, y_label: str, x_unit: float, y_unit: float) -> str:
        """Grid, ticks and labels, with room for the ribbon."""
        parts = []
        for v in _ticks(self.top / y_unit):
            y = self.y(v * y_unit)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>')
            parts.append(f'<text class="tick" x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{v:g}</text>')
        base = _BOTTOM + _RIBBON + 2
        for v in _ticks(self.high / x_unit):
            x = self.x(v * x_unit)
            parts.append(f'<path class="axis" d="M{x:.1f} {base}v4"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{v:g}</text>')
        middle = (_LEFT + _RIGHT) // 2
        parts.append(f'<path class="axis" d="M{_LEFT} {_BOTTOM}H{_RIGHT}"/>')
        parts.append(
            f'<text class="label" x="{middle}" y="{base + 38}" text-anchor="middle">{escaped(x_label)}</text>'
        )
        parts.append(f'<text class="label" x="{_LEFT}" y="14">{escaped(y_label)}</text>')
        return "".join(parts)


@dataclass(frozen=True, eq=False, repr=False)
class MemoryDrawing:
    """Memory while each op runs, by kind, with the budget; a ribbon below shows the phase of each run.

    Attributes:
        reading: the reading of the judged schedule; it must run something.
        budget: bytes, or None.
    """

    reading: Reading
    budget: int | None

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """The first run of each group, and the number of runs; shape ``[n_groups + 1]``."""
        n = len(self.reading.ops)
        return np.linspace(0, n, min(n, GROUPS) + 1).astype(np.int64)

    @cached_property
    def shown(self) -> npt.NDArray[np.int64]:
        """The highest run of each group, which is drawn; shape ``[n_groups]``."""
        memory = self.reading.memory
        pairs = pairwise(self.bounds.tolist())
        return np.array([a + int(memory[a:b].argmax()) for a, b in pairs], dtype=np.int64)

    @cached_property
    def recomputed(self) -> npt.NDArray[np.float64]:
        """The share of each group's runs that are recomputations; shape ``[n_groups]``."""
        again = (self.reading.phases == Phase.RECOMPUTE).astype(np.float64)
        return np.add.reduceat(again, self.bounds[:-1]) / np.diff(self.bounds)

    @property
    def timed(self) -> bool:
        """Whether the horizontal axis is cumulative cost; if all costs are 0, it counts runs."""
        return bool(self.reading.starts[-1] > 0)

    @property
    def frame(self) -> _Frame:
        """The plotting area of this picture."""
        high = float(self.reading.starts[-1]) if self.timed else float(len(self.reading.ops))
        return _Frame(high, max(self.reading.timeline.peak, self.budget or 0, 1) * 1.08)

    @cached_property
    def edges(self) -> list[float]:
        """The start of each group, and the end of the last one, in the picture's units."""
        at = self.reading.starts if self.timed else np.arange(len(self.reading.ops) + 1.0)
        return [round(self.frame.x(v), 2) for v in at[self.bounds].tolist()]

    def svg(self) -> str:
        """The whole picture."""
        frame, graph = self.frame, self.reading.timeline.graph
        scale, unit = byte_unit(int(frame.top))
        what = f"cumulative cost {f'[{clipped(graph.cost_unit, 20)}]' if graph.cost_unit else ''}"
        factor = 10.0 ** (3 * math.floor(math.log10(frame.high) / 3)) if not 0.1 <= frame.high < 1e4 else 1.0
        power = f", in 10^{round(math.log10(factor))}" if factor != 1.0 else ""
        x_label = what.strip() + power if self.timed else "ops run"
        return (
            f'<svg id="memory" viewBox="0 0 960 {_BOTTOM + _RIBBON + 48}" role="img" tabindex="0" '
            'aria-label="memory held while each op runs">'
            + frame.axes(x_label, f"memory held [{unit}]", factor, scale)
            + "".join(self._areas(frame))
            + "".join(self._ribbon())
            + self._marks(frame)
            + f'<path id="cursor" d="M0 {_TOP}V{_BOTTOM + _RIBBON}" visibility="hidden"/></svg>'
        )

    def _areas(self, frame: _Frame) -> Iterable[str]:
        """The kinds, stacked: drawn as sums, the highest first, each covering what is below it."""
        sums = np.cumsum([self.reading.by_kind[kind][self.shown] for kind in KINDS], axis=0)
        for kind, heights in reversed(list(zip(KINDS, sums.tolist(), strict=True))):
            if kind != "base" and heights == sums[KINDS.index(kind) - 1].tolist():
                continue
            yield f'<path class="{kind}" d="{self._steps(frame, heights)}"/>'
        yield f'<path class="outline" d="{self._steps(frame, sums[-1].tolist())}"/>'

    def _steps(self, frame: _Frame, heights: list[float]) -> str:
        corners = (f"V{frame.y(h):.1f}H{x:.1f}" for h, x in zip(heights, self.edges[1:], strict=True))
        return f"M{self.edges[0]:.1f} {_BOTTOM}{''.join(corners)}V{_BOTTOM}Z"

    def _ribbon(self) -> Iterable[str]:
        """The phases of the runs: forward or backward; over it, from below, each group's recomputed share."""
        ops = self.reading.timeline.graph.ops
        backward = [ops[v].backward for v in self.reading.ops[self.shown].tolist()]
        starts = np.flatnonzero(np.diff(backward, prepend=not backward[0])).tolist()
        for a, b in pairwise([*starts, len(backward)]):
            yield (
                f'<rect class="phase{int(backward[a])}" x="{self.edges[a]:.1f}" y="{_BOTTOM + 2}" '
                f'width="{self.edges[b] - self.edges[a]:.1f}" height="{_RIBBON}"/>'
            )
        low = _BOTTOM + 2 + _RIBBON
        tops = (low - share * _RIBBON for share in self.recomputed.tolist())
        corners = "".join(f"V{y:.1f}H{x:.1f}" for y, x in zip(tops, self.edges[1:], strict=True))
        yield f'<path class="phase2" d="M{self.edges[0]:.1f} {low}{corners}V{low}Z"/>'

    def _marks(self, frame: _Frame) -> str:
        """The budget line; the peak and the op that runs then."""
        reading, parts = self.reading, []
        if self.budget is not None:
            y = frame.y(self.budget)
            parts.append(f'<path class="budget" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>')
        group = int(np.searchsorted(self.bounds, reading.peak_run, side="right")) - 1
        x, y = (self.edges[group] + self.edges[group + 1]) / 2, frame.y(reading.timeline.peak)
        name = escaped(clipped(reading.timeline.graph.ops[int(reading.ops[reading.peak_run])].name, 40))
        left = x < (_LEFT + _RIGHT) / 2
        parts.append(f'<path class="peak" d="M{x:.1f} {y:.1f}l-5 -8h10z"/>')
        parts.append(
            f'<text class="peaktext" x="{x + (9 if left else -9):.1f}" y="{y - 6:.1f}" '
            f'text-anchor="{"start" if left else "end"}">'
            f"{format_bytes(reading.timeline.peak)} in {name}</text>"
        )
        return "".join(parts)


def _ticks(high: float) -> list[float]:
    """Some six round numbers within [0, high]: multiples of 1, 2 or 5 times a power of ten."""
    rough = high / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return [round(k * step, 12) for k in range(math.floor(high / step + 1e-9) + 1)]

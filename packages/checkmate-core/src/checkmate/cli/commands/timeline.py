"""Memory over time as lines of text: blocks on an axis, one column for each run or for several.

With n runs and w columns, column c shows the runs from ⌊c·n/w⌋ to ⌊(c+1)·n/w⌋, at least one: their largest
memory, so that no peak is lost, and their most frequent phase. Memory is rounded up to the next part of a
cell. This module is independent of terminals and colours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkmate.units import format_bytes

__all__ = ["ASCII", "BLOCKS", "Glyphs", "Line", "picture"]

Line = list[tuple[str, str]]
"""Pieces of text, each with its style: forward, backward, recompute, over, budget, peak, axis or ""."""

_PHASES = ("forward", "backward", "recompute")
_LETTERS = "fbr"
_WIDEST = 8  # most columns of one run
_NARROWEST = 12  # fewest columns of all runs together


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters of the picture: ``levels[k]`` fills k parts of a cell, the last one all of it."""

    levels: str
    peak: str
    budget: str
    left: str
    tick: str
    corner: str
    floor: str


BLOCKS = Glyphs(levels=" ▁▂▃▄▅▆▇█", peak="▼", budget="╌", left="│", tick="┤", corner="└", floor="─")
ASCII = Glyphs(levels=" #", peak="v", budget="-", left="|", tick="|", corner="+", floor="-")


def picture(
    memory: npt.NDArray[np.int64],
    phases: npt.NDArray[np.int64],
    *,
    width: int,
    height: int = 12,
    budget: int | None = None,
    glyphs: Glyphs = BLOCKS,
) -> list[Line]:
    """Draw memory over the runs of a schedule.

    Args:
        memory: bytes held during each run, int64, shape ``[n_runs]``.
        phases: 0 forward, 1 backward, 2 recomputation; of the same shape.
        width: columns of each line, scale included; the curve has at least 12.
        height: lines of the curve, ≥ 1.
        budget: bytes; None draws no line.
        glyphs: the characters.

    Returns:
        ``height + 4`` lines: the peak's mark, the curve, the axis, one letter for the phase of each
        column, and the numbers of the first and the last run; empty without runs.

    >>> lines = picture(np.array([4, 8]), np.array([0, 1]), width=30, height=2, glyphs=ASCII)
    >>> for line in lines:
    ...     print("".join(text for text, _ in line).rstrip())
                 v
    8 B |        ########
        |################
    0 B +----------------
         ffffffffbbbbbbbb
         run 0      run 1
    """
    if len(memory) == 0:
        return []
    scale = max(int(memory.max()), budget or 0, 1)
    named = {0: format_bytes(scale), height: format_bytes(0)}  # rows that have a number, from the top
    if budget is not None:
        named.setdefault(_row(budget, scale, height), format_bytes(budget))
    margin = max(map(len, named.values())) + 2
    tops, kinds = _columns(memory, phases, max(width - margin, _NARROWEST))
    styles = [_PHASES[kind] for kind in kinds]
    gap = (" " * margin, "")

    lines: list[Line] = [[(" " * (margin + int(np.argmax(tops == memory.max()))), ""), (glyphs.peak, "peak")]]
    for row in range(height):
        tick = glyphs.tick if row in named else glyphs.left
        scale_piece = (f"{named.get(row, ''):>{margin - 2}} {tick}", "axis")
        cells = _cells(tops, styles, row, (scale, height, budget), glyphs)
        lines.append([scale_piece, *_joined(cells)])
    lines.append([(f"{named[height]:>{margin - 2}} {glyphs.corner}{glyphs.floor * len(tops)}", "axis")])
    lines.append([gap, *_joined((_LETTERS[kind], _PHASES[kind]) for kind in kinds)])
    lines.append([gap, (_ends(len(memory), len(tops)), "axis")])
    return lines


def _columns(
    memory: npt.NDArray[np.int64], phases: npt.NDArray[np.int64], width: int
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """The most memory and the most frequent phase of each column; of equally frequent ones, the later."""
    n = len(memory)
    count = min(width, n * _WIDEST)
    starts = np.arange(count) * n // count
    ends = np.maximum((np.arange(count) + 1) * n // count, starts + 1)
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    tops = np.array([memory[a:b].max() for a, b in spans], dtype=np.int64)
    counts = [np.bincount(phases[a:b], minlength=len(_PHASES)) for a, b in spans]
    return tops, [len(_PHASES) - 1 - int(c[::-1].argmax()) for c in counts]


def _cells(
    tops: npt.NDArray[np.int64],
    styles: Sequence[str],
    row: int,
    frame: tuple[int, int, int | None],
    glyphs: Glyphs,
) -> Iterator[tuple[str, str]]:
    """One row of the curve, cell by cell; the line of the budget shows in empty cells."""
    scale, height, budget = frame
    full = len(glyphs.levels) - 1
    line = None if budget is None else _row(budget, scale, height)
    for top, style in zip(tops.tolist(), styles, strict=True):
        parts = -(-top * height * full // scale) - (height - 1 - row) * full
        if parts <= 0:
            yield (glyphs.budget, "budget") if row == line else (" ", "")
        else:
            over = budget is not None and line is not None and top > budget and row <= line
            yield glyphs.levels[min(parts, full)], "over" if over else style


def _row(size: int, scale: int, height: int) -> int:
    """The row, counted from the top, in which a curve of this height ends."""
    return height - max(1, -(-size * height // scale))


def _ends(n: int, width: int) -> str:
    """The numbers of the first and the last run, at the ends of the axis."""
    first, last = "run 0", f"run {n - 1}"
    room = width - len(first) - len(last)
    return f"{first}{' ' * room}{last}" if room > 0 else f"runs 0 to {n - 1}"


def _joined(cells: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Join neighbours of one style."""
    for style, group in itertools.groupby(cells, key=lambda cell: cell[1]):
        yield "".join(text for text, _ in group), style

"""Pieces of HTML that notebooks show: a table, and the outline of a sequence of numbers.

Each piece is well-formed XML without script, style sheet or network; any text is escaped, and stays text. The
page's own colours are used, whether it is light or dark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from html import escape

import numpy as np
import numpy.typing as npt

from checkmate.text.printable import printable

__all__ = ["escaped", "figure", "outline", "table"]

_GROUPS = 400
"""The most steps of an outline; more numbers are drawn in groups of equal size."""
_WIDTH, _HEIGHT = 800, 140
_INK = "#4a80b8"
_LIMIT = "#d0453a"


def figure(title: str, *parts: str) -> str:
    """A title above pieces of HTML."""
    return f"<div><p><b>{escaped(title)}</b></p>{''.join(parts)}</div>"


def table(rows: Iterable[Iterable[str]], head: Iterable[str] = (), *, numbers: Collection[int] = ()) -> str:
    """A table of texts, below titles if there is a ``head``; columns of ``numbers`` are aligned to the right.

    >>> table([["a<b", "1 B"]], numbers=[1])
    '<table><tr><td align="left">a&lt;b</td><td align="right" class="n">1 B</td></tr></table>'
    """

    def line(tag: str, cells: Iterable[str]) -> str:
        return "".join(cell(tag, k, text) for k, text in enumerate(cells))

    def cell(tag: str, k: int, text: str) -> str:
        style = ' align="right" class="n"' if k in numbers else ' align="left"'
        return f"<{tag}{style}>{escaped(text)}</{tag}>"

    lines = [line("th", head), *(line("td", row) for row in rows)]
    return f"<table>{''.join(f'<tr>{each}</tr>' for each in lines if each)}</table>"


def outline(
    heights: npt.NDArray[np.int64], caption: str, limit: int | None = None, *, lowest: bool = False
) -> str:
    """A sequence of numbers ≥ 0 as steps, from left to right, with a dashed line at ``limit``.

    Where several numbers share a step, it shows the largest of them, or with ``lowest`` the smallest. Without
    numbers there is no picture.

    >>> outline(np.array([], dtype=np.int64), "nothing")
    ''
    """
    if not len(heights):
        return ""
    bounds = np.linspace(0, len(heights), min(len(heights), _GROUPS) + 1).astype(np.int64)
    shown = (np.minimum if lowest else np.maximum).reduceat(heights, bounds[:-1])
    top = max(int(shown.max()), limit or 0, 1) * 1.05
    edges = bounds[1:] / len(heights) * _WIDTH
    levels = _HEIGHT - shown / top * _HEIGHT
    steps = "".join(f"V{y:.1f}H{x:.1f}" for x, y in zip(edges.tolist(), levels.tolist(), strict=True))
    line = ""
    if limit is not None:
        y = _HEIGHT - limit / top * _HEIGHT
        line = f'<path d="M0 {y:.1f}H{_WIDTH}" fill="none" stroke="{_LIMIT}" stroke-dasharray="6 4"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}"><path d="M0 {_HEIGHT}{steps}V{_HEIGHT}Z" fill="{_INK}" fill-opacity="0.35" '
        f'stroke="{_INK}"/>{line}</svg><p>{escaped(caption)}</p>'
    )


def escaped(text: str) -> str:
    """The text as HTML, with an escape for each invisible character."""
    return escape(printable(text))

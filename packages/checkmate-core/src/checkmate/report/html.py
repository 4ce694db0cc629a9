"""One HTML file about one judged schedule: memory over time by kind, and the recomputed ops with reasons.

The file is self-contained: no network (its own policy forbids any), no library, no font. Without JavaScript
it is a static picture with tables; with it, the picture shows the holders of memory at each run. Names of ops
and tensors are data, and can't become markup or script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from checkmate.files.disk import replace_file
from checkmate.model.graph import DFGraph
from checkmate.problem.explanation import Explanation, explanation
from checkmate.problem.pieces import WHOLE, Pieces
from checkmate.problem.problem import keep_all_peak
from checkmate.problem.reading import Reading
from checkmate.problem.solution import Solution
from checkmate.report.svg import KINDS, MemoryDrawing
from checkmate.simulate import Timeline
from checkmate.text.markup import escaped, table
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes

if TYPE_CHECKING:
    import os

__all__ = ["HtmlReport", "html_report"]

_TENSORS = 5  # largest tensors that are named for each run
_PHASES = ("forward", "backward", "recomputed")
_KIND_NAMES = ("inputs and fixed", "activations", "gradients", "workspace")
_ROWS = 50
_HOLDERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlReport:
    """The exporter of :func:`html_report`."""

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        """Write the report of ``timeline``, with the line of the budget, if given."""
        html_report(timeline, file, budget=budget)


def html_report(
    answer: Solution | Timeline,
    file: str | os.PathLike[str],
    *,
    budget: int | None = None,
    title: str = "",
    plain_peak: int | None = None,
    measured: int | None = None,
) -> None:
    """Write a self-contained report for any browser.

    Args:
        answer: a solution, or a timeline. A solution without a schedule gives a page that says so.
        file: the path to write.
        budget: bytes, for a timeline; a solution has its own.
        title: title of the page; default the graph's name.
        plain_peak: peak of the step without recomputation, in bytes; default that of the base order.
        measured: peak that a meter measured, in bytes; None without a measurement.

    >>> import checkmate, tempfile
    >>> chain = checkmate.DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]], name="chain")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "chain.html")
    ...     html_report(checkmate.solve(chain, budget=6, solver="keep-all"), path)
    ...     "<title>chain</title>" in path.read_text(encoding="utf-8")
    True
    """
    timeline = answer.timeline if isinstance(answer, Solution) else answer
    graph = answer.problem.graph if isinstance(answer, Solution) else answer.graph
    limit = answer.problem.budget if isinstance(answer, Solution) else budget
    pieces = answer.pieces if isinstance(answer, Solution) else WHOLE
    title = title or graph.name or "Schedule"
    body = [
        f"<header><h1>{escaped(title)}</h1><p>{_n_ops(graph, pieces)}, {graph.n_tensors:,} tensors, "
        f"digest {graph.digest[:12]}</p></header>",
        _facts(answer, limit, keep_all_peak(graph) if plain_peak is None else plain_peak, measured),
    ]
    script = ""
    if timeline is not None and len(timeline.schedule):
        reading = Reading(timeline)
        drawing = MemoryDrawing(reading, limit)
        body += _memory_section(drawing)
        body += [_recompute_table(explanation(reading, limit, pieces=pieces)), _holder_table(reading)]
        script = _scripts(drawing)
    body.append("<footer>Written by Checkmate. Bytes are in binary units: 1 KiB = 1024 B.</footer>")
    replace_file(file, _page(title, "\n".join(body), script).encode())


def _page(title: str, body: str, script: str) -> str:
    style = _asset("report.css")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(_asset('report.js'))}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{body}\n{script}\n</body>\n</html>\n"
    )


def _memory_section(drawing: MemoryDrawing) -> Iterable[str]:
    n_runs, n_groups = len(drawing.reading.ops), len(drawing.shown)
    keys = [*zip(KINDS, _KIND_NAMES, strict=True), ("phase2", "recomputed (ribbon)")]
    note = (
        f" {n_runs:,} runs are drawn in {n_groups:,} groups, each as its highest run: the others have no "
        "entry of their own in this file. Orange in the ribbon is the recomputed share."
        if n_groups < n_runs
        else ""
    )
    yield (
        "<section><h2>Memory while each op runs</h2><p>Bytes held by kind. The ribbon below shows first runs "
        "of forward and backward ops, and recomputation. Point at a run, or use the arrow keys, to see what "
        f"it holds.{note}</p>"
    )
    legend = _legend(keys, with_budget=drawing.budget is not None)
    yield f'<div class="card"><figure>{drawing.svg()}{legend}</figure>'
    yield '<div class="details" id="details" aria-live="polite"></div></div></section>'


def _legend(keys: Iterable[tuple[str, str]], *, with_budget: bool) -> str:
    entries = [
        f'<li><svg viewBox="0 0 16 12"><rect class="{style}" width="16" height="12" rx="2"/></svg>{name}</li>'
        for style, name in keys
    ]
    if with_budget:
        entries.append('<li><svg viewBox="0 0 16 12"><path class="budget" d="M0 6H16"/></svg>budget</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _scripts(drawing: MemoryDrawing) -> str:
    """The data as a block that browsers don't run, and the script that reads it."""
    reading = drawing.reading
    graph, shown = reading.timeline.graph, drawing.shown
    top = reading.largest_at(shown.tolist(), _TENSORS)
    tensors = {t: k for k, t in enumerate(dict.fromkeys(t for row in top for t in row))}
    ops = {v: k for k, v in enumerate(dict.fromkeys(reading.ops[shown].tolist()))}
    data = {
        "edges": drawing.edges,
        "step": reading.steps[shown].tolist(),
        "op": [ops[v] for v in reading.ops[shown].tolist()],
        "phase": reading.phases[shown].tolist(),
        "memory": reading.memory[shown].tolist(),
        "cost": [cost_text(graph.ops[v].cost, graph.cost_unit) for v in reading.ops[shown].tolist()],
        "held": [reading.by_kind[kind][shown].tolist() for kind in KINDS],
        "top": [[tensors[t] for t in row] for row in top],
        "names": [clipped(graph.ops[v].name, 90) for v in ops],
        "tensors": [clipped(graph.tensors[t].name, 50) for t in tensors],
        "sizes": [graph.tensors[t].size for t in tensors],
        "kinds": _KIND_NAMES,
        "phases": _PHASES,
        "peak": shown.tolist().index(reading.peak_run),
        "budget": drawing.budget,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":  # so that no name can end the block
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    code = _asset("report.js")
    return f'<script type="application/json" id="data">{text}</script>\n<script>{code}</script>'


def _asset(name: str) -> str:
    return (files("checkmate.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The name of an inline block in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _n_ops(graph: DFGraph, pieces: Pieces) -> str:
    """The number of ops; of ops in pieces, that of whole ones too."""
    if not pieces:
        return f"{graph.n_ops:,} ops"
    whole, cut = pieces.whole_ops(graph), {piece.name for piece in pieces.of if piece is not None}
    return f"{len(whole):,} ops, {len(cut):,} of them in pieces: {graph.n_ops:,} with each piece"


def _facts(answer: Solution | Timeline, budget: int | None, plain: int, measured: int | None) -> str:
    """The figures of a solution, or the simulator's and the budget; then the other two peaks."""
    if isinstance(answer, Solution):
        rows = answer.facts
        if answer.pieces and answer.timeline is not None:
            of_pieces = ("status", "proved bound", "gap")
            rows = [
                (f"{name} for these pieces" if name in of_pieces else name, value) for name, value in rows
            ]
    else:
        rows = [
            ("cost", cost_text(answer.cost, answer.graph.cost_unit)),
            ("overhead", f"{answer.overhead:.2%}"),
            ("peak", format_bytes(answer.peak)),
            *([("budget", format_bytes(budget))] if budget is not None else []),
            ("recomputed", f"{answer.recomputes:,} runs"),
        ]
    rows.append(("plain step's peak", format_bytes(plain)))
    if measured is not None:
        rows.append(("measured peak", format_bytes(measured)))
    cells = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in rows)
    return f'<dl class="facts">{cells}</dl>'


def _recompute_table(why: Explanation) -> str:
    """Each recomputed op: times computed, bytes saved, extra cost, and the reason."""
    head = "<section><h2>Recomputed ops, and why</h2>"
    if not why.rows:
        return f"{head}<p>Nothing: every op runs at most once.</p></section>"
    return (
        f"{head}<p>The most expensive first. <i>Times</i>: computes of the op. <i>Bytes saved</i>: the most "
        "that was freed at one time and recomputed later.</p>"
        f"{_table(why.HEAD, why.cells(_ROWS), numbers=range(1, 4))}</section>"
    )


def _holder_table(reading: Reading) -> str:
    """The tensors held during the run that sets the peak, the largest first."""
    holders, peak = reading.holders(reading.peak_run), max(reading.timeline.peak, 1)
    by_kind: dict[str, int] = {}
    for holder in holders:
        by_kind[holder.kind] = by_kind.get(holder.kind, 0) + holder.size
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in by_kind.items())
    rows = [
        [
            clipped(h.name, 80),
            h.kind,
            format_bytes(h.size),
            f"{h.size / peak:.1%}",
        ]
        for h in holders[:_HOLDERS]
    ]
    rest = holders[_HOLDERS:]
    size = format_bytes(sum(h.size for h in rest))
    note = f"<p>{len(rest):,} smaller ones are left out; they hold {size}.</p>" if rest else ""
    op = reading.timeline.graph.ops[int(reading.ops[reading.peak_run])]
    step = reading.steps[reading.peak_run]
    return (
        "<section><h2>Tensors at the peak</h2>"
        f"<p>While {escaped(clipped(op.name, 80))} runs (step {step}): {kinds}.</p>"
        + _table(("what", "kind", "bytes", "share"), rows, numbers=(2, 3))
        + f"{note}</section>"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Collection[int]) -> str:
    """A table that scrolls where it is wider than the page."""
    return f'<div class="scroll">{table(rows, head, numbers=numbers)}</div>'

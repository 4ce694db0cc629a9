"""The results as text: one block for each graph, one line for each solve."""

from __future__ import annotations

from collections.abc import Iterator

from solvers.records import Results, Row

__all__ = ["heading", "line", "text"]

_HEAD = (
    f"{'share':>5}  {'solver':<20}{'seed':>4}  {'outcome':<14}{'cost':>9}{'bound':>9}{'gap %':>8}"
    f"{'/ best':>9}{'first s':>9}{'5 % s':>8}{'1 % s':>8}{'final s':>8}{'all s':>8}{'MiB':>7}"
)
_MEANING = """\
cost, bound: relative to computing every op once; / best: cost over the best cost known;
first, 5 %, 1 %, final s: until there was a schedule, until its cost was so near to that at the end;
MiB: peak of the process"""


def text(results: Results) -> str:
    """All of it."""
    blocks = ["\n".join(_sessions(results)), _MEANING]
    for graph in results.graphs:
        rows = [line(results, row) for row in results.rows if row.graph == graph]
        if rows:
            blocks.append("\n".join([heading(results, graph), _HEAD, *rows]))
    return "\n\n".join(blocks)


def heading(results: Results, graph: str) -> str:
    """What a graph is."""
    facts = results.graphs[graph]
    kind = "training step" if facts.training else "no backward ops"
    floor = f"floor at {facts.floor / facts.keep_all_peak:.0%} of the keep-everything peak"
    return f"{graph}: {facts.ops} ops, {facts.tensors} tensors, {kind}, {floor}"


def line(results: Results, row: Row) -> str:
    """One solve."""
    cost, bound = results.relative(row, row.cost), results.relative(row, row.bound or None)
    best = results.best(row.graph, row.share)
    head = f"{row.share:>5.2f}  {row.solver[-19:]:<20}{row.seed:>4}  {row.outcome:<14}"
    if row.seconds is None:
        return head + row.note.partition(";")[0]
    figures = [
        _cell(cost, 9, 5),
        _cell(bound, 9, 5),
        _cell(None if row.gap is None else 100 * row.gap, 8, 3),
        _cell(None if cost is None or not best else cost / best, 9, 5),
        *(_cell(s, width, 3) for s, width in _times(row)),
        _cell(None if row.peak_rss is None else row.peak_rss / 2**20, 7, 0),
    ]
    return head + "".join(figures)


def _times(row: Row) -> Iterator[tuple[float | None, int]]:
    yield row.first_s, 9
    for seconds in (row.within_s(0.05), row.within_s(0.01), row.final_s, row.seconds):
        yield seconds, 8


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def _sessions(results: Results) -> Iterator[str]:
    order = "first runs in base order" if results.settings.fixed_order else "order free"
    yield f"time limit: {results.settings.time_limit:g} s, one core for each solve, {order}"
    for facts in results.sessions:
        flat = {key: value for key, value in facts.items() if key != "packages"}
        versions = ", ".join(f"{name} {v or 'not installed'}" for name, v in facts["packages"].items())
        yield ", ".join(f"{key}: {value}" for key, value in flat.items()) + f"; {versions}"

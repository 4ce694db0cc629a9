"""Ops in pieces, predicted: least budgets and extra times of published models on an H100."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation.experiment import Experiment
from evaluation.panels import panels
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

_SHARES = (0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_BOTH = ("GPT-2", "Llama 3.2 1B")
_MODELS = (*_BOTH, "Qwen3 0.6B", "BERT base", "T5 base", "Gemma 2 2B", "ViT-B/16", "ResNet-50")
_PROTOTYPE: Mapping[tuple[str, str], tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {
    ("GPT-2", "step"): (
        (0.533, 0.152, None, None, None, None, None),
        (0.057, 0.005, 0.014, 0.039, 0.067, 0.101, 0.192),
    ),
    ("Llama 3.2 1B", "step"): (
        (0.469, 0.112, 0.182, None, None, None, None),
        (0.098, 0.003, 0.017, 0.035, 0.072, 0.119, 0.342),
    ),
    ("GPT-2", "apart"): ((), (0.088, 0.029, 0.055, 0.088, 0.136, 0.20, None)),
    ("Llama 3.2 1B", "apart"): ((), (0.107, 0.022, 0.043, 0.089, 0.138, 0.19, None)),
}
"""Least budget, then extra times at each share, of an earlier prototype: whole, and the loss in 16 pieces,
where forward and backward are apart in 8."""
_WAYS = {"step": "whole step", "apart": "forward and backward apart"}
_DEARER = 0.005
"""Of the step: the most by which a cell may cost more than the prototype's."""


def tasks(quick: bool) -> Sequence[Task]:
    """Whole steps of each model; forward and backward apart, and numbers of pieces tried by hand, of two."""
    if quick:
        return [_task("GPT-2", "step", (0.3,), 1.0)]
    apart = [_task(name, "apart", _SHARES, 5.0) for name in _BOTH]
    by_hand = [_task(name, "step", _SHARES[1:], 5.0, counts=_COUNTS) for name in _BOTH]
    return [*(_task(name, "step", _SHARES, 5.0) for name in _MODELS), *apart, *by_hand]


def _task(
    model: str, way: str, shares: Sequence[float], time_limit: float, *, counts: Sequence[int] = ()
) -> Task:
    return {"model": model, "way": way, "shares": [*shares], "time_limit": time_limit, "counts": [*counts]}


def markdown(results: Results) -> str:
    """A summary, extra times beside the prototype's, and those of counts tried by hand."""
    rows = [row for row in results.rows if row["cells"]]
    shares = sorted({cell["share"] for row in rows for cell in row["cells"]}, reverse=True)
    head = ("extra time", "least budget", *(f"{share:.0%}" for share in shares))
    counted = {row["model"]: row for row in results.rows if row["by_hand"]}
    tried = [(row, counted[row["model"]]) for row in rows if row["way"] == "step" and row["model"] in counted]
    lines = [line for row in rows for line in _lines(row, shares)]
    parts = [_summary(rows, tried), table(head, lines), *(_counted(*pair) for pair in tried)]
    failed = [f"- {row['model']}, {row['way']}: {why}" for row in results.rows if (why := row.failure)]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])])


def draw(results: Results) -> Figure | None:
    """Extra time within each budget, a panel for each model and way: whole, in pieces, the prototype's."""
    rows = [row for row in results.rows if row["cells"]]
    if not rows:
        return None
    figure, places = panels(len(rows), 3, (3.8, 3.0))
    for panel, row in zip(places, rows, strict=True):
        for split, marker, label in (("auto", "o-", "in pieces"), (False, "s-", "whole")):
            found = [c for c in row["cells"] if c["split"] == split and c["overhead"] is not None]
            panel.plot(*_points((c["share"], c["overhead"]) for c in found), marker, label=label)
        _, known = _PROTOTYPE.get((row["model"], row["way"]), ((), ()))
        panel.plot(*_points(zip(_SHARES, known[1:], strict=False)), "x:", color="0.4", label="prototype")
        panel.set_title(_name(row), fontsize="medium")
        panel.set_xlim(0, 65)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("budget, % of peak", fontsize="small")
        panel.grid(alpha=0.25)
    places[0].set_ylabel("extra time, %")
    places[0].legend(fontsize="small")
    return figure


def _points(pairs: Iterable[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """Both coordinates in percent."""
    known = [(100 * x, 100 * y) for x, y in pairs if y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _name(row: Row) -> str:
    return f"{row['model']}, {_WAYS[row['way']]}"


def _summary(rows: Sequence[Row], tried: Sequence[tuple[Row, Row]]) -> str:
    compared = [pair for row in rows for pair in _beside_prototype(row)]
    kept = sum(ours is not None and ours <= theirs + _DEARER for ours, theirs in compared)
    lower = sum(
        row["least"]["auto"] < row["least"]["False"] for row in rows if None not in row["least"].values()
    )
    said = [
        f"The least budget is lower with pieces for {lower} of {len(rows)} rows. In {kept} of the "
        f"{len(compared)} cells of the prototype, ours costs at most 0.5 % of the step more."
    ]
    cells = [cell for pair in tried for cell in _best_by_hand(*pair)]
    if cells:
        best = sum(auto is not None and (hand is None or auto <= hand + _DEARER) for _, auto, hand in cells)
        strictly = sum(auto is not None and (hand is None or auto <= hand + 1e-9) for _, auto, hand in cells)
        said.append(
            f"The number of pieces that is decided is as cheap as the best of {len(_COUNTS)} tried by "
            f"hand in {strictly} of {len(cells)} cells, and within 0.5 % of the step in {best}."
        )
    return " ".join(said)


def _lines(row: Row, shares: Sequence[float]) -> list[list[str]]:
    name = _name(row)
    before, after = _PROTOTYPE.get((row["model"], row["way"]), ((), ()))
    lines = []
    for split, title, known in ((False, "whole", before), ("auto", "in pieces", after)):
        cells = {cell["share"]: cell for cell in row["cells"] if cell["split"] == split}
        least = row["least"][str(split)]
        lines.append(
            [f"{name}: {title}", _percent(least, ""), *(_cell(cells.get(share)) for share in shares)]
        )
        if known:
            least, *others = known
            at = dict(zip(_SHARES, others, strict=True))
            lines.append(
                [
                    f"the prototype, {title}",
                    _percent(least, ""),
                    *(_percent(at.get(share)) for share in shares),
                ]
            )
    return lines


def _counted(row: Row, counted: Row) -> str:
    """The extra times of counts tried by hand, and of what is decided."""
    cells = counted["by_hand"]
    counts = [*dict.fromkeys(cell["split"] for cell in cells)]
    lines = []
    for share, auto, _ in _best_by_hand(row, counted):
        tried = {cell["split"]: cell["overhead"] for cell in cells if cell["share"] == share}
        lines.append([f"{share:.0%}", _percent(auto), *(_percent(tried[n]) for n in counts)])
    head = (f"{row['model']}: budget", "decided", *(f"{n} piece{'s' if n > 1 else ''}" for n in counts))
    return table(head, lines)


def _best_by_hand(row: Row, counted: Row) -> list[tuple[float, float | None, float | None]]:
    """Share, extra time of what is decided, and the least of the counts tried by hand."""
    auto = {cell["share"]: cell["overhead"] for cell in row["cells"] if cell["split"] == "auto"}
    found = []
    for share in dict.fromkeys(cell["share"] for cell in counted["by_hand"]):
        tried = [
            c["overhead"] for c in counted["by_hand"] if c["share"] == share and c["overhead"] is not None
        ]
        found.append((share, auto.get(share), min(tried, default=None)))
    return found


def _beside_prototype(row: Row) -> list[tuple[float | None, float]]:
    _, after = _PROTOTYPE.get((row["model"], row["way"]), ((), ()))
    known = dict(zip(_SHARES, after[1:], strict=False))
    cells = {cell["share"]: cell["overhead"] for cell in row["cells"] if cell["split"] == "auto"}
    return [
        (cells.get(share), theirs) for share, theirs in known.items() if theirs is not None and share in cells
    ]


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None or cell["overhead"] is None:
        return "–"
    pieces = f" ({', '.join(map(str, cell['pieces']))})" if cell["pieces"] else ""
    return f"{_percent(cell['overhead'])}{pieces}"


def _percent(value: float | None, sign: str = "+") -> str:
    return "–" if value is None else f"{value:{sign}.1%}"


EXPERIMENT = Experiment(
    name="split-predicted",
    title="Ops in pieces, predicted",
    about="least budgets and extra times of published models on an H100, with ops in pieces and without",
    tasks=tasks,
    measure=partial(measured, "torch_split_predicted", own={"OMP_NUM_THREADS": "1"}),
    markdown=markdown,
    draw=draw,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "transformers"),
    needs=("torch", "transformers"),
)

"""Ops in pieces, executed: peak, time and gradients of small networks within budgets, beside fixed pieces.

Each row is a process of its own on one thread. Its steps alternate with those of plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation.experiment import Experiment
from evaluation.panels import panels
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import KEEPS_MEMORY, measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

_LANGUAGE = ("GPT-2-like", "Llama-like", "Qwen3-like", "Gemma-2-like", "T5-like", "BERT-like")
_IMAGES = ("ViT-like", "ConvNeXt-like", "U-Net")
_OURS = ("compile", "step", "whole")
_PEERS = ("chunks", "linear_cross_entropy")
_CLOSE = 0.01
_MOST_EXTRA = 0.12


def tasks(quick: bool) -> Sequence[Task]:
    """Each network within its shares, and each language model beside what cuts by a fixed rule."""
    effort = {"time_limit": 3.0, "spend_s": 1.0} if quick else {"time_limit": 5.0, "spend_s": 4.0}
    language, images = (("GPT-2-like",), ()) if quick else (_LANGUAGE, _IMAGES)
    ways: list[tuple[str, str, float | None]] = [("GPT-2-like", "step", 0.3)]
    ways += [(name, "compile", 0.3) for name in (*language, *images)]
    ways += [(name, "chunks", None) for name in language]
    if not quick:
        ways += [
            (name, method, 1.0) for name in ("GPT-2-like", "ViT-like") for method in ("compile", "whole")
        ]
        ways += [(name, "linear_cross_entropy", None) for name in language]
        ways += [(name, "step", 0.3) for name in language[1:]]
        ways += [(name, "compile", 0.6) for name in (*language, *images)]
        ways += [(name, "compile", 0.2) for name in language] + [(name, "compile", 0.4) for name in images]
    return [{"network": name, "method": way, "share": share, **effort} for name, way, share in ways]


def markdown(results: Results) -> str:
    """A summary, the budgets, and the comparison with pieces of fixed sizes."""
    ours = [row for row in results.rows if row["method"] in _OURS]
    peers = [row for row in results.rows if row["method"] in _PEERS]
    head = ("network", "way", "budget MiB", "expected", "measured", "pieces", "extra time", "gradients")
    by_network = [row for name in results.distinct("network") for row in ours if row["network"] == name]
    parts = [_summary(ours), table(head, [_line(row) for row in by_network])]
    if peers:
        columns = (
            "network",
            "cut by",
            "their peak MiB",
            "their extra time",
            "our peak",
            "our time",
            "gradients",
        )
        parts += [_peers_in_words(peers), table(columns, [_peer_line(row) for row in peers])]
    failed = [f"- {row['network']}, {_way(row)}: {why}" for row in results.rows if (why := row.failure)]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])])


def draw(results: Results) -> Figure | None:
    """Measured peak and extra time of each network: ours within budgets, and pieces of fixed sizes."""
    networks = [name for name in results.distinct("network") if _points(results, name, "compile")]
    if not networks:
        return None
    figure, places = panels(len(networks), 3, (3.6, 2.9))
    for panel, name in zip(places, networks, strict=True):
        panel.plot(*zip(*_points(results, name, "compile"), strict=True), "o-", label="Checkmate")
        for method, marker, label in (
            ("chunks", "s", "256 tokens at a time"),
            ("linear_cross_entropy", "^", "F.linear_cross_entropy"),
        ):
            if points := _points(results, name, method):
                panel.plot(*zip(*points, strict=True), marker, label=label)
        panel.set_title(name, fontsize="medium")
        panel.set_xlim(0, 100)
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
        panel.set_xlabel("measured peak, % of plain", fontsize="small")
        panel.grid(alpha=0.25)
    places[0].set_ylabel("extra time, %")
    places[0].legend(fontsize="x-small")
    return figure


def _points(results: Results, network: str, method: str) -> list[tuple[float, float]]:
    peak, extra = ("peak", "time_overhead") if method == "compile" else ("their_peak", "their_time_overhead")
    rows = results.where(network=network, method=method)
    return sorted((100 * r[peak] / r["plain_peak"], 100 * r[extra]) for r in rows if r[peak])


def _summary(ours: Sequence[Row]) -> str:
    found = [row for row in ours if row["peak"]]
    within = sum(row["peak"] <= row["budget"] for row in found)
    close = sum(abs(row["expected"] / row["peak"] - 1) <= _CLOSE for row in found)
    worst = max((_error(row) for row in found if row["pieces"]), default=0.0)
    whole = [row for row in found if not row["pieces"]]
    bits = sum(_error(row) == 0.0 for row in whole)
    said = [
        f"The measured peak is within the budget in {within} of {len(found)} rows, and within 1 % of the "
        f"expected one in {close}.",
        f"Where ops run in pieces, gradients differ from plain PyTorch's by at most {worst:.0e}; of the "
        f"{len(whole)} rows in which nothing is cut, {bits} are equal to the bit.",
    ]
    at_aim = {row["method"]: row["time_overhead"] for row in found if _is_aim(row)}
    said += [
        f"The GPT-2-like model at 30 % of plain, by {method}: {extra:+.1%} time (the aim: at most "
        f"{_MOST_EXTRA:+.0%})."
        for method, extra in at_aim.items()
    ]
    if impossible := [row for row in ours if not row["peak"] and not row.failure]:
        names = ", ".join(f"{row['network']} at {row['share']:.0%}" for row in impossible)
        said.append(f"No schedule was found for {names}.")
    return " ".join(said)


def _is_aim(row: Row) -> bool:
    return row["network"] == "GPT-2-like" and row["share"] == 0.3


def _peers_in_words(peers: Sequence[Row]) -> str:
    found = [row for row in peers if row["peak"]]
    better = sum(row["against"] < 0 and row["peak"] <= row["their_peak"] for row in found)
    return (
        f"Within the peak of what cuts by a fixed rule, ours takes less time in {better} of {len(found)} "
        "rows. “Our time”: that of our step relative to theirs, less one, median of pairs."
    )


def _line(row: Row) -> list[str]:
    head = [row["network"], _way(row)]
    if not row["peak"]:
        least = "" if row["needs"] is None else f"needs {row['needs'] / row['plain_peak']:.0%}"
        return [*head, _mib(row["budget"]), "", least or "failed", "", "", ""]
    return [
        *head,
        _mib(row["budget"]),
        _mib(row["expected"]),
        _mib(row["peak"]),
        _pieces(row),
        f"{row['time_overhead']:+.1%}",
        _exactness(_error(row)),
    ]


def _peer_line(row: Row) -> list[str]:
    cut_by = {"chunks": "256 tokens", "linear_cross_entropy": "`F.linear_cross_entropy`"}[row["method"]]
    if row["their_peak"] is None:
        return [row["network"], cut_by, "failed", "", "", "", ""]
    theirs = [_mib(row["their_peak"]), f"{row['their_time_overhead']:+.1%}"]
    if not row["peak"]:
        return [row["network"], cut_by, *theirs, "infeasible", "", ""]
    ours = [_mib(row["peak"]), f"{row['against']:+.1%}", _exactness(_error(row))]
    return [row["network"], cut_by, *theirs, *ours]


def _error(row: Row) -> float:
    return float(max(row[name] or 0.0 for name in ("gradient_error", "parameter_error", "loss_error")))


def _exactness(error: float) -> str:
    return "bits" if error == 0.0 else f"{error:.0e}"


def _pieces(row: Row) -> str:
    counts: Any = row["pieces"]
    return ", ".join(str(n) for n in sorted(set(counts), reverse=True)) or "–"


def _way(row: Row) -> str:
    name = {"whole": "split=False", "step": "whole step"}.get(row["method"], row["method"])
    return name if row["share"] is None else f"{name} {row['share']:.0%}"


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.1f}"


EXPERIMENT = Experiment(
    name="split",
    title="Ops in pieces",
    about="peak, time and gradients where ops run in pieces, beside pieces of fixed sizes",
    tasks=tasks,
    measure=partial(measured, "torch_split", own={"OMP_NUM_THREADS": "1", **KEEPS_MEMORY}),
    markdown=markdown,
    draw=draw,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "transformers"),
    needs=("torch", "transformers"),
    alone=True,
)

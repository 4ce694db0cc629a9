"""The tables of the README: a few rows of what the pages show whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from evaluation.executions import plain_peak
from evaluation.results import Results, Row, read_results
from pages import table
from solvers.records import read_results as read_solves
from steps.process import LEAST

__all__ = ["tables"]

_NETWORKS = {
    "mlp": "12-block MLP",
    "resnet18": "ResNet-18-like",
    "unet": "U-Net",
    "gpt2": "GPT-2-like",
    "unet-dropout": "U-Net with dropout",
    "transformer": "transformer",
    "vgg19": "VGG19",
    "mobilenet": "MobileNet",
    "resnet50": "ResNet50",
    "densenet121": "DenseNet121",
    "fcn8": "FCN8",
    "segnet": "SegNet",
}
_STEPS = {
    "chain64": "chain of 64 equal layers",
    "unet4": "U-Net, 4 levels",
    "residual16": "residual network, 16 blocks",
    "transformer12": "transformer, 12 layers",
    "transformer106": "transformer, 106 layers",
}
_WRONG = 1e-4
"""Errors of gradients or averages above this are told."""


def tables(folder: Path) -> dict[str, Callable[[], str]]:
    """By name, what makes each table from the results files of a folder."""
    return {
        "readme-torch": lambda: torch(read_results(folder / "steps-torch.json")),
        "readme-tf": lambda: tensorflow(read_results(folder / "steps-tf.json")),
        "readme-batch": lambda: batches(read_results(folder / "largest-batch.json")),
        "readme-solvers": lambda: solvers(folder / "solvers.json"),
    }


def torch(results: Results) -> str:
    """Measured peak as a share of the plain one, and extra wall time, for each way to save memory."""
    rows = []
    for network in results.distinct("network"):
        found = _measured(results, network)
        ours = _ours(found, 0.6, 0.5, 0.4, LEAST)
        plain = plain_peak(found)
        theirs = [row for row in found if row["method"].startswith("torch")]
        least = min(theirs, key=lambda row: float(row["peak"]), default=None)
        note = "" if least is None or least["method"] == "torch" else " ¹"
        checkpoint = [row for row in found if row["method"] == "checkpoint"]
        told = "–" if least is None else _points([least], plain) + note
        rows.append((_NETWORKS[network], _points(ours, plain), _points(checkpoint, plain), told))
    head = (
        "network",
        "Checkmate",
        "`torch.utils.checkpoint` per block",
        "torch's `activation_memory_budget`, lowest peak",
    )
    return table(head, rows)


def tensorflow(results: Results) -> str:
    """The same, with what the peers get wrong."""
    rows = []
    for network in results.distinct("network"):
        found = _measured(results, network)
        ours = _ours(found, 0.6, 0.4, LEAST)
        plain = plain_peak(found)
        ways = [ours, *([row for row in found if row["method"] == m] for m in ("recompute_grad", "remat"))]
        rows.append((f"{_NETWORKS[network]}, {plain / 2**20:.0f} MiB", *(_told(way, plain) for way in ways)))
    return table(("network, stock peak", "Checkmate", "`tf.recompute_grad`", "`keras.remat`"), rows)


def batches(results: Results) -> str:
    """The largest batch on the smallest device, by method."""
    solvers = {"keep-all": "keep all", "chen-greedy": "greedy rule", "auto": "Checkmate, proved largest"}
    rows = []
    for network in results.distinct("network"):
        found = {row["solver"]: row["batches"][0] for row in results.where(network=network)}
        if found["auto"]["batch"] + 1 != found["auto"]["impossible"]:
            raise ValueError(f"{network}: a larger batch is not refuted, so the table's heading is wrong")
        rows.append((_NETWORKS[network], *(found[solver]["batch"] for solver in solvers)))
    return table(("network", *solvers.values()), rows)


def solvers(file: Path) -> str:
    """Schedules of ``auto`` within half the keep-everything peak; for how many the paper's MILP finds one."""
    results = read_solves(file)
    rows, solved = [], 0
    for graph, title in _STEPS.items():
        (row,) = results.of(graph, 0.5, "auto")
        gap = row.gap or 0.0
        proved = "optimal" if row.outcome == "optimal" else f"{gap:.2%}" if gap >= 1e-4 else "< 0.01%"
        cost, ops = f"{results.relative(row, row.cost):.3f}", f"{results.graphs[graph].ops:,}"
        rows.append((title, ops, cost, proved, f"{row.first_s:.2g} s", f"{row.final_s:.2g} s"))
        (milp,) = results.of(graph, 0.5, "checkmate-milp")
        solved += milp.cost is not None
    head = ("training step", "ops", "cost", "proved gap", "first schedule", "final")
    paper = (
        f"The Checkmate paper's own MILP, on HiGHS, finds a schedule for {solved or 'none'} of these in "
        f"{results.settings.time_limit:g} seconds."
    )
    return f"{table(head, rows)}\n\n{paper}"


def _measured(results: Results, network: str) -> list[Row]:
    return [row for row in results.where(network=network) if row["peak"] and row["device"] in (None, "cpu")]


def _ours(rows: Iterable[Row], *shares: float) -> list[Row]:
    return [row for row in rows if row["method"] == "checkmate" and row["share"] in shares]


def _points(rows: Iterable[Row], plain: int) -> str:
    """Each as "50% at +3%", the largest first."""
    told = sorted(rows, key=lambda row: float(row["peak"]), reverse=True)
    return ", ".join(f"{row['peak'] / plain:.0%} at {row['time_overhead']:+.0%}" for row in told) or "–"


def _told(rows: Sequence[Row], plain: int) -> str:
    """The points, and what is not as in the plain step."""
    wrong = {
        what: max((row[name] for row in rows), default=0.0)
        for what, name in (("gradients", "gradient_error"), ("averages", "average_error"))
    }
    off = [f"{what} off by {value:.0%}" for what, value in wrong.items() if value > _WRONG]
    return "; ".join([_points(rows, plain), *off])

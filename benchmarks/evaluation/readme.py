"""The table of the README: a few rows of the experiment *steps-torch*."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from evaluation.executions import plain_peak
from evaluation.results import Results, Row, read_results
from pages import table
from steps.process import LEAST

__all__ = ["markdown"]

_NETWORKS = {
    "mlp": "12-block MLP",
    "resnet18": "ResNet-18-like",
    "unet": "U-Net",
    "gpt2": "GPT-2-like",
}
_SHARES = (0.6, 0.5, 0.4, LEAST)


def markdown(folder: Path) -> str:
    """Measured peak as a share of the plain one, and extra wall time, for each way to save memory.

    Args:
        folder: of results files.
    """
    results, rows = read_results(folder / "steps-torch.json"), []
    for network in results.distinct("network"):
        found = _measured(results, network)
        plain = plain_peak(found)
        ours = [row for row in found if row["method"] == "checkmate" and row["share"] in _SHARES]
        checkpoint = [row for row in found if row["method"] == "checkpoint"]
        theirs = [row for row in found if row["method"].startswith("torch")]
        least = min(theirs, key=lambda row: float(row["peak"]), default=None)
        note = "" if least is None or least["method"] == "torch" else " ¹"
        lowest = "–" if least is None else _points([least], plain) + note
        rows.append((_NETWORKS[network], _points(ours, plain), _points(checkpoint, plain), lowest))
    head = (
        "network",
        "Checkmate",
        "`torch.utils.checkpoint` per block",
        "torch's `activation_memory_budget`, lowest peak",
    )
    return table(head, rows)


def _measured(results: Results, network: str) -> list[Row]:
    return [row for row in results.where(network=network) if row["peak"] and row["device"] in (None, "cpu")]


def _points(rows: Iterable[Row], plain: int) -> str:
    """Each as "50% at +3%", the largest peak first."""
    points = sorted(rows, key=lambda row: float(row["peak"]), reverse=True)
    return ", ".join(f"{row['peak'] / plain:.0%} at {row['time_overhead']:+.0%}" for row in points) or "–"

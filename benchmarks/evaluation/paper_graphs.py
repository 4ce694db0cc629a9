"""The paper's own graphs: what our solvers find there, beside the proved optima.

Rows of ``benchmarks/solvers/run.py`` on graphs that the original project's code extracted; the files of the
graphs are not ours to hand on. Costs in them are times profiled on a V100, and for FCN8 FLOPs.
"""

from __future__ import annotations

from pathlib import Path

from pages import conditions, table
from solvers.records import read_results

__all__ = ["markdown"]

_NAMES = {"ck_VGG16": "VGG16, batch 256", "ck_vgg_unet": "U-Net, batch 32", "ck_fcn_8_vgg": "FCN8"}
_SOLVERS = ("auto", "checkmate-milp")


def markdown(folder: Path) -> str:
    """A line for each graph and budget, of ``paper_graphs.json``; costs relative to computing every op once.

    Args:
        folder: of results files.
    """
    results = read_results(folder / "paper_graphs.json")
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for row in results.rows:
        cost, bound = (results.relative(row, value) for value in (row.cost, row.bound))
        cells.setdefault((row.graph, row.share), {})[row.solver] = f"{cost:.5f}, ≥ {bound:.5f}"
    lines = []
    for graph, share in sorted(cells):
        peak = results.graphs[graph].keep_all_peak
        budget = f"{share * peak / 1e9:.2f} GB, {share:.0%}"
        optimum = results.known[f"{graph}:{share}"]
        lines.append(
            [_NAMES[graph], budget, f"{optimum:.5f}", *(cells[graph, share].get(s, "–") for s in _SOLVERS)]
        )
    head = ["graph", "budget", "optimum", *(f"{solver}: cost, bound" for solver in _SOLVERS)]
    return f"{table(head, lines)}\n\n{conditions(results.sessions)}"

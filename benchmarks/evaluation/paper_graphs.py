"""The paper's own graphs: the results of our solvers beside the proved optima.

The rows come from the experiment *solvers* (``--graphs``). The original project's code extracted the graphs;
its licence does not let us distribute these files. Costs are times profiled on a V100, and FLOPs for FCN8.
"""

from __future__ import annotations

from pathlib import Path

from evaluation.results import read_results
from pages import conditions, table

__all__ = ["markdown"]

_NAMES = {"ck_VGG16": "VGG16, batch 256", "ck_vgg_unet": "U-Net, batch 32", "ck_fcn_8_vgg": "FCN8"}
_SOLVERS = ("auto", "checkmate-milp")


def markdown(folder: Path) -> str:
    """A line for each graph and budget of ``paper_graphs.json``; costs relative to computing every op once.

    Args:
        folder: of results files.
    """
    results = read_results(folder / "paper_graphs.json")
    lines = []
    for graph, share in sorted({(row["graph"], row["share"]) for row in results.where()}):
        rows = {row["solver"]: row for row in results.where(graph=graph, share=share)}
        first = next(iter(rows.values()))
        budget = f"{share * first['keep_all'] / 1e9:.2f} GB, {share:.0%}"
        found = (rows.get(solver) for solver in _SOLVERS)
        cells = ("–" if row is None else f"{row['cost']:.5f}, ≥ {row['bound']:.5f}" for row in found)
        lines.append([_NAMES[graph], budget, f"{first['optimum']:.5f}", *cells])
    head = ["graph", "budget", "optimum", *(f"{solver}: cost, bound" for solver in _SOLVERS)]
    return f"{table(head, lines)}\n\n{conditions(results.sessions)}"

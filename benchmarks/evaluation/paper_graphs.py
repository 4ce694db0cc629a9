"""The paper's own graphs: what our solvers find there, beside the proved optima.

Rows of ``benchmarks/solvers/run.py`` on graphs that the original project's code extracted; the files of the
graphs are not ours to hand on. Costs in them are times profiled on a V100, and for FCN8 FLOPs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from evaluation.pages import conditions, table
from evaluation.results import Results

__all__ = ["markdown"]

_NAMES = {"ck_VGG16": "VGG16, batch 256", "ck_vgg_unet": "U-Net, batch 32", "ck_fcn_8_vgg": "FCN8"}
_SOLVERS = ("auto", "checkmate-milp")


def markdown(folder: Path) -> str:
    """A line for each graph and budget, of ``paper_graphs.json``; costs relative to computing every op once.

    Args:
        folder: of results files.
    """
    read = msgspec.json.decode((folder / "paper_graphs.json").read_bytes())
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for row in read["rows"]:
        once = read["graphs"][row["graph"]]["ideal_cost"]
        found = f"{row['cost'] / once:.5f}, ≥ {row['bound'] / once:.5f}"
        cells.setdefault((row["graph"], row["share"]), {})[row["solver"]] = found
    lines = []
    for graph, share in sorted(cells):
        peak = read["graphs"][graph]["keep_all_peak"]
        budget = f"{share * peak / 1e9:.2f} GB, {share:.0%}"
        optimum = read["known"][f"{graph}:{share}"]
        lines.append(
            [_NAMES[graph], budget, f"{optimum:.5f}", *(cells[graph, share].get(s, "–") for s in _SOLVERS)]
        )
    head = ["graph", "budget", "optimum", *(f"{solver}: cost, bound" for solver in _SOLVERS)]
    asked = Results(experiment="paper-graphs", sessions=tuple(read["sessions"]))
    return f"{table(head, lines)}\n\n{conditions(asked)}"

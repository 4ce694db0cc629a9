"""What the built-in heuristics pay for half, and for 70 %, of the keep-everything peak, on generated graphs.

Prints a Markdown table of overheads in percent, "–" where a rule finds nothing; with --seconds the times.
Costs don't depend on the machine: the rules have no random choices, and the time limit is generous.

    python benchmarks/heuristics.py [--solvers chen-greedy,heuristics] [--seconds]
"""

from __future__ import annotations

import argparse
import time

import checkmate
from checkmate import generators

SHARES = ("50%", "70%")
SOLVERS = (
    "heuristics",
    "evict-belady",
    "evict-dtr",
    "chen-sqrt-n",
    "chen-sqrt-n-ap",
    "chen-greedy",
    "chen-greedy-ap",
    "first-fit",
    "checkpoint-last",
)


def main() -> None:
    """Ask every solver about every graph and share, print a row for each solver."""
    parser = argparse.ArgumentParser(description="Overheads of heuristics on generated graphs.")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="names, separated by commas")
    parser.add_argument("--seconds", action="store_true", help="times instead of overheads")
    options = parser.parse_args()
    graphs = {
        "chain(64)": generators.chain(64),
        "residual(8)": generators.residual(8),
        "unet(4)": generators.unet(4),
        "densenet(12)": generators.densenet(12),
        "transformer(12)": generators.transformer(12),
    }
    print("| solver |", " | ".join(f"{name}, n = {graph.n_ops}" for name, graph in graphs.items()), "|")
    print("|---|", "---|" * len(graphs), sep="")
    for solver in options.solvers.split(","):
        rows = [answers(graph, solver, seconds=options.seconds) for graph in graphs.values()]
        print(f"| {solver} |", " | ".join(rows), "|", flush=True)


def answers(graph: checkmate.DFGraph, solver: str, *, seconds: bool) -> str:
    """One cell: overheads, or seconds, at each share."""
    cells = []
    for share in SHARES:
        started = time.perf_counter()
        solution = checkmate.solve(graph, share, solver=solver, time_limit=60, throw=False)
        passed = time.perf_counter() - started
        overhead = "–" if solution.schedule is None else f"{100 * solution.overhead:.1f}"
        cells.append(f"{passed:.2f}" if seconds else overhead)
    return " / ".join(cells)


if __name__ == "__main__":
    main()

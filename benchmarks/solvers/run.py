"""Solvers side by side on a folder of graphs: cost, bound, gap, seconds, and how near to the best known.

    python benchmarks/solvers/run.py --graphs DIR --budgets 0.5 0.3 --solvers auto local-search --time-limit 10

Budgets are shares of the keep-everything peak. With ``--known FILE`` (JSON: ``"graph:share": {"best": cost}``,
costs relative to computing every op once) its pairs are run, and each cost is compared with the best known.
Pin the process to one core (``taskset -c 0``) before you compare seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkmate import DFGraph, Problem, Solution, keep_all_peak, read_graph
from checkmate.plugins import load_solver

_HEAD = f"{'graph':<16}{'n':>6}{'share':>7}  {'solver':<14}{'cost':>9}{'bound':>9}{'gap %':>8}{'s':>7}"


def main() -> None:
    """Run what the command line asks for, and print a line for each."""
    asked = _arguments()
    known: dict[str, Any] = json.loads(asked.known.read_text()) if asked.known else {}
    ratios: list[float] = []
    print(_HEAD + f"{'/ known':>10}  origin")
    for name, share in _pairs(asked, known):
        graph = read_graph(asked.graphs / f"{name}.json")
        for solver in asked.solvers:
            found, seconds = _solved(graph, share, solver, asked)
            best = known.get(f"{name}:{share:g}", {}).get("best", math.nan)
            ratio = found.cost / graph.ideal_cost / best
            ratios.append(ratio)
            print(_row(graph, name, share, solver, found, seconds) + f"{ratio:>10.5f}  {dict(found.origin)}")
    if known and ratios:
        print(f"worst ratio to the best known: {max(ratios):.5f}")


def _solved(graph: DFGraph, share: float, solver: str, asked: argparse.Namespace) -> tuple[Solution, float]:
    problem = Problem(
        graph=graph,
        budget=int(share * keep_all_peak(graph)),
        time_limit=asked.time_limit,
        fixed_order=asked.fixed_order,
        seed=asked.seed,
    )
    started = time.monotonic()
    found = load_solver(solver).solve(problem)
    return found, time.monotonic() - started


def _row(graph: DFGraph, name: str, share: float, solver: str, found: Solution, seconds: float) -> str:
    cost, bound = found.cost / graph.ideal_cost, found.bound / graph.ideal_cost
    head = f"{name:<16}{graph.n_ops:>6}{share:>7.2f}  {solver:<14}"
    return head + f"{cost:>9.5f}{bound:>9.5f}{100 * found.gap:>8.3f}{seconds:>7.2f}"


def _pairs(asked: argparse.Namespace, known: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Which graphs at which shares."""
    names = sorted(path.stem for path in asked.graphs.glob("*.json"))
    if asked.budgets:
        yield from ((name, share) for name in names for share in asked.budgets)
    else:
        for key in known:
            name, share = key.split(":")
            if name in names and (not asked.only or any(only in key for only in asked.only)):
                yield name, float(share)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--graphs", type=Path, required=True, help="folder of checkmate.graph files")
    parser.add_argument("--budgets", type=float, nargs="*", default=[], help="shares of the keep-all peak")
    parser.add_argument("--solvers", nargs="+", default=["auto"], help="names of solvers")
    parser.add_argument("--known", type=Path, help="JSON of best known costs")
    parser.add_argument("--only", nargs="*", default=[], help="of the known pairs, those that contain one of these")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed-order", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()

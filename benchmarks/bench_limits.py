"""Time limits: how far each solver exceeds its limit, on graphs of up to 50,000 ops.

    python benchmarks/bench_limits.py                                     # all of it, a quarter of an hour
    python benchmarks/bench_limits.py --ops 1000 --solvers auto           # a part
    python benchmarks/bench_limits.py -o benchmarks/results/limits.json   # keep the results

"Over" is the wall time beyond the limit, less the time to simulate one schedule of that graph, as a share of
the limit. Each figure is the median of several solves of fresh graphs, at half the peak without
recomputation; libraries are imported and the local search is compiled before. Run it on an idle machine. Exit
code 1: a solver exceeded its limit by more than a tenth.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from checkmate import DFGraph, Schedule, SolverError, generators, read_graph, simulate, solve
from checkmate.files.serialize import graph_bytes
from checkmate.plugins import SOLVERS
from machine import session
from results_file import Results, write_results

ALLOWED = 0.1
FAMILIES: dict[str, Callable[[int], DFGraph]] = {
    "transformer": lambda n: generators.transformer(n // 30),
    "random": lambda n: generators.random_layered(n // 2, width=5, training=True),
}


class Row(msgspec.Struct):
    """One solver at one limit; times in seconds, medians."""

    family: str
    ops: int
    solver: str
    limit_s: float
    judging_s: float
    wall_s: float
    cpu_s: float
    over: float
    status: str


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write; returns the exit code."""
    asked = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    results = Results([session("benchmarks/bench_limits.py", arguments, [0])], [])
    for family, make in FAMILIES.items():
        for n in asked.ops:
            content = graph_bytes(make(n))
            for solver in asked.solvers:
                _timed(content, solver, 0.2)  # imports
                for limit_s in asked.limits:
                    row = _row(family, content, solver, limit_s, asked.runs)
                    results.rows.append(row)
                    print(
                        f"{row.family:<12}{row.ops:>7} ops  {row.solver:<20} limit {row.limit_s:>5} s  "
                        f"wall {row.wall_s:>6.2f} s  over {row.over:>7.1%}  {row.status}",
                        flush=True,
                    )
    worst = max(results.rows, key=lambda row: row.over)
    print(f"\nworst: {worst.solver} by {worst.over:.1%} at {worst.limit_s} s, {worst.ops} ops")
    if asked.output:
        write_results(asked.output, results)
    return int(worst.over > ALLOWED)


def _row(family: str, content: bytes, solver: str, limit_s: float, runs: int) -> Row:
    solves = [_timed(content, solver, limit_s) for _ in range(runs)]
    judging_s = statistics.median(_judging_s(content) for _ in range(runs))
    wall_s, cpu_s = (statistics.median(taken[k] for taken in solves) for k in (0, 1))
    over = (wall_s - judging_s - limit_s) / limit_s
    ops, status = read_graph(content).n_ops, solves[0][2]
    return Row(family, ops, solver, limit_s, judging_s, wall_s, cpu_s, over, status)


def _timed(content: bytes, solver: str, limit_s: float) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds and status of one solve of a fresh graph."""
    graph = read_graph(content)
    gc.collect()
    wall, cpu = time.monotonic(), time.process_time()
    try:
        status = str(solve(graph, "50%", solver=solver, time_limit=limit_s, throw=False).status)
    except SolverError as error:
        status = str(error)[:60]
    return time.monotonic() - wall, time.process_time() - cpu, status


def _judging_s(content: bytes) -> float:
    graph = read_graph(content)
    gc.collect()
    started = time.monotonic()
    simulate(graph, Schedule.from_sequence(graph, range(graph.n_ops)))
    return time.monotonic() - started


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ours = [spec.name for spec in SOLVERS.specs() if spec.name != "luck"]  # a plugin of the tests
    parser.add_argument("--ops", type=int, nargs="+", default=[1000, 10_000, 50_000])
    parser.add_argument("--limits", type=float, nargs="+", default=[0.1, 1.0], metavar="SECONDS")
    parser.add_argument("--solvers", nargs="+", default=ours)
    parser.add_argument("--runs", type=int, default=3, help="of which the median is taken")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Times of core for graphs of 10² … 10⁵ ops: build, digest, simulate, write and read.

The graph is a training step: a forward pass with skip connections, and a backward pass that reads it. Its
schedule computes in base order with random recomputations, about 3.3 steps for each op. Each figure is the
median of several runs in one process, with garbage collected before each; every run has a fresh graph, so
that cached attributes are computed again. Run it on an idle machine:

    python benchmarks/bench_core.py [--ops 100,1000] [--runs 7] [-o benchmarks/results/core.json]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import checkmate
from checkmate.files.serialize import graph_bytes, schedule_bytes
from machine import session
from pages import conditions
from results_file import Results, write_results

Row = dict[str, Any]
MEASURES = {
    "build": "a DFGraph from columns of numbers, checked",
    "digest": "its content hash, arrays derived on the way",
    "free": "Schedule.from_sequence: where to free",
    "simulate": "the simulator, which checks every schedule",
    "write graph": "as JSON bytes",
    "read graph": "from JSON bytes, checked",
    "write schedule": "as JSON bytes",
    "read schedule": "from JSON bytes, digest compared",
    "plan": "Plan.of: R and S of the schedule",
    "lower": "and back",
}


def main(words: Sequence[str]) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Times of checkmate-core against the number of ops.")
    parser.add_argument("--ops", default="100,1000,3000,10000,100000", help="sizes, separated by commas")
    parser.add_argument("--runs", type=int, default=7, help="runs of each, of which the median counts")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args(words)
    ran = session("benchmarks/bench_core.py", words, [], ("checkmate-core", "numpy", "msgspec"))
    rows = [row_of(int(n), arguments.runs) for n in arguments.ops.split(",")]
    print(f"{table(rows)}\n\n{conditions([ran])}")
    if arguments.output:
        write_results(arguments.output, Results(sessions=[ran], rows=rows))


# --- measurements -----------------------------------------------------------------------------------------


def row_of(n: int, runs: int) -> Row:
    """All figures for one size, in seconds."""
    columns = training_step(n)

    def fresh() -> checkmate.DFGraph:
        return checkmate.DFGraph.from_nodes(**columns)

    graph = fresh()
    sequence = with_recomputation(n)
    schedule = checkmate.Schedule.from_sequence(graph, sequence)
    graph_json, schedule_json = graph_bytes(graph), schedule_bytes(schedule, graph)
    plan = fitting_plan(graph, schedule)
    actions: dict[str, Callable[[], object]] = {
        "build": fresh,
        "free": lambda: checkmate.Schedule.from_sequence(graph, sequence),
        "simulate": lambda: checkmate.simulate(graph, schedule),
        "write graph": lambda: graph_bytes(graph),
        "read graph": lambda: checkmate.read_graph(graph_json),
        "write schedule": lambda: schedule_bytes(schedule, graph),
        "read schedule": lambda: checkmate.read_schedule(schedule_json, graph),
    }
    if plan is not None:
        actions["plan"] = lambda: checkmate.Plan.of(graph, schedule)
        actions["lower"] = lambda: checkmate.lower(plan)
    seconds = {name: median(action, runs) for name, action in actions.items()}
    seconds["digest"] = median(lambda it: it.digest, runs, fresh)
    return {
        "ops": n,
        "steps": len(schedule),
        "graph_bytes": len(graph_json),
        "schedule_bytes": len(schedule_json),
        "seconds": {name: seconds.get(name) for name in MEASURES},
    }


def median(action: Callable[..., object], runs: int, prepare: Callable[[], object] | None = None) -> float:
    """Median seconds of ``action``; its argument is the result of ``prepare``, which is not timed."""
    taken = []
    for _ in range(runs):
        arguments = () if prepare is None else (prepare(),)
        gc.collect()
        start = time.perf_counter()
        action(*arguments)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def training_step(n: int, seed: int = 0) -> Row:
    """Columns of a graph: n // 2 forward ops with skips of up to 8, and n // 2 that read them in reverse."""
    random = Random(seed)
    turn = n // 2
    deps = []
    for i in range(n):
        mirrored = [n - 1 - i] if i >= turn else []
        skip = [random.randrange(max(0, i - 8), i)] if 0 < i < turn and random.random() < 0.3 else []
        deps.append([*([i - 1] if i else []), *skip, *mirrored])
    return {
        "cost": [random.uniform(0.1, 10) for _ in range(n)],
        "size": [random.randrange(1, 2**20) for _ in range(n)],
        "deps": [[d for d in row if d < i] for i, row in enumerate(deps)],
        "names": [f"layer{min(i, n - 1 - i)}.{'forward' if i < turn else 'backward'}" for i in range(n)],
        "backward": [i >= turn for i in range(n)],
        "cost_unit": "s",
    }


def with_recomputation(n: int, seed: int = 1) -> list[int]:
    """The base order, with an earlier op after two of three."""
    random = Random(seed)
    sequence = []
    for i in range(n):
        sequence.append(i)
        if random.random() < 0.66:
            sequence.append(random.randrange(i + 1))
    return sequence


def fitting_plan(graph: checkmate.DFGraph, schedule: checkmate.Schedule) -> checkmate.Plan | None:
    """The plan; None where its matrices would be too large."""
    try:
        return checkmate.Plan.of(graph, schedule)
    except checkmate.PlanError:
        return None


# --- the report -------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """Milliseconds, one column for each size."""
    heads = ("ops", "steps", "graph_bytes", "schedule_bytes")
    lines = [f"{head:<16}" + "".join(f"{row[head]:>12}" for row in rows) for head in heads]
    lines += ["", "milliseconds, medians"]
    for name, meaning in MEASURES.items():
        cells = (row["seconds"][name] for row in rows)
        shown = "".join(f"{'too large' if s is None else f'{1e3 * s:.2f}':>12}" for s in cells)
        lines.append(f"{name:<16}{shown}   {meaning}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])

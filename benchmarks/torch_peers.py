"""PyTorch's own plans judged by ours: recompute time at every peak that ``activation_memory_budget`` reaches.

PyTorch's partitioner decides which tensors cross from the forward to the backward pass; the order in which
its two graphs then run is a schedule of our graph, so our judge can say what it costs and what it holds. For
each network, solver of theirs and budget 1.0 … 0.0:

    theirs(solver, budget) = (peak, cost) of that schedule          ours(peak) = cost of our answer within it

Costs are our profiled seconds, for both. Ours must be no larger at any of their peaks; the last columns are
the least peaks of both. Batch norm, which PyTorch's plans recompute wrongly in training, is judged as if they
did not: in their favour.

    python benchmarks/torch_peers.py [--models mlp,gpt2] [--time-limit 10] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch_step import Row, forget_earlier_runs, machine

import checkmate
from checkmate import DFGraph, Schedule
from checkmate_torch.joint import Traced, trace_joint
from checkmate_torch.options import Options
from checkmate_torch.zoo import CASES

THEIRS = ("dp", "greedy", "ilp")
BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def main() -> None:
    """Judge everything, print the table, write it beside the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for our solver")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    forget_earlier_runs()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)  # copies of joint graphs make PyTorch warn of itself
    about = machine() | {"time_limit": arguments.time_limit}
    rows = [row for model in arguments.models.split(",") for row in judged(model, arguments.time_limit)]
    lines = [", ".join(f"{key}: {value}" for key, value in about.items()), "", *table(rows)]
    print("\n".join(lines))
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "torch_peers.txt").write_text("\n".join(lines) + "\n")
    (folder / "torch_peers.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def judged(model: str, time_limit: float) -> Iterator[Row]:
    """Each different point of theirs, the cheapest solver at each peak, and ours there."""
    graph, points = points_of(model)
    everything = graph.ideal_cost
    least = checkmate.minimum_budget(graph, solver="auto", time_limit=time_limit, fixed_order=True).peak
    lowest = min(peak for peak, _, _, _ in points)
    best: dict[int, tuple[float, str, float]] = {}
    for peak, cost, solver, budget in points:
        best[peak] = min(best.get(peak, (cost, solver, budget)), (cost, solver, budget))
    for peak, (cost, solver, budget) in sorted(best.items(), reverse=True):
        ours = checkmate.solve(graph, peak, fixed_order=True, time_limit=time_limit)
        yield {
            "model": model,
            "peak": peak,
            "theirs": {"solver": solver, "budget": budget, "overhead": cost / everything - 1},
            "ours": {"peak": ours.peak, "overhead": ours.overhead, "gap": ours.gap, "seconds": ours.seconds},
            "least": {"theirs": lowest, "ours": least},
        }


def points_of(model: str) -> tuple[DFGraph, list[tuple[int, float, str, float]]]:
    """The priced graph of a network, and (peak, cost, solver, budget) of every plan of theirs."""
    case = CASES[model]()
    found: list[tuple[DFGraph, list[tuple[int, float, str, float]]]] = []

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
        plans = {}
        for solver in THEIRS:
            for budget in BUDGETS:
                with torch._functorch.config.patch(
                    activation_memory_budget=budget, activation_memory_budget_solver=solver
                ):
                    graphs = min_cut_rematerialization_partition(
                        copy.deepcopy(joint), inputs, num_fwd_outputs=num_fwd_outputs, **more
                    )
                plans[solver, budget] = graphs
        traced = trace_joint(
            copy.deepcopy(joint),
            n_primals=len(inputs[0]),
            n_forward_outputs=num_fwd_outputs,
            loss_bytes=None if case.targets is not None else 0,
        )
        options = Options.parse(budget="100%")
        traced = replace(traced, graph=options.priced(traced.graph, traced.nodes))
        points = []
        for (solver, budget), graphs in plans.items():
            timeline = checkmate.simulate(traced.graph, schedule_of(traced, *graphs))
            points.append((timeline.peak, timeline.cost, solver, budget))
        found.append((traced.graph, points))
        return plans[THEIRS[0], 1.0]

    compiler: Callable[..., Any] = aot_autograd(
        fw_compiler=lambda gm, _: gm, bw_compiler=lambda gm, _: gm, partition_fn=partition
    )
    with torch._functorch.config.patch(donated_buffer=False):
        torch.compile(case.module, backend=compiler, fullgraph=True)(*case.inputs)
    return found[0]


def schedule_of(traced: Traced, forward: Any, backward: Any) -> Schedule:
    """The order in which two graphs run, as a schedule: their nodes have the names of the joint graph's.

    What makes an output that the caller holds is not computed again: its value is there.
    """
    ops = {node.name: i for i, node in enumerate(traced.nodes) if node is not None}

    def ran(module: Any) -> list[int]:
        return [ops[n.name] for n in module.graph.nodes if n.op == "call_function" and n.name in ops]

    if traced.boundary is None:
        raise ValueError("a step of two passes has a boundary")
    early = ran(forward)
    once = {op for op in early if not traced.graph.ops[op].recomputable}
    late = [op for op in ran(backward) if op not in once]
    return Schedule.from_sequence(traced.graph, [*early, traced.boundary, *late])


def table(rows: list[Row]) -> Iterator[str]:
    """A line for each peak of theirs."""
    yield "network    their peak their solver, budget  their overhead   ours there   least: theirs       ours"
    for row in rows:
        theirs, ours, least = row["theirs"], row["ours"], row["least"]
        worse = "" if ours["overhead"] <= theirs["overhead"] + 1e-9 else "  WORSE"
        yield (
            f"{row['model']:9} {row['peak'] / 2**20:7.1f} MiB {theirs['solver']:>12} {theirs['budget']:7.1f}"
            f"{theirs['overhead']:16.2%}{ours['overhead']:13.2%}"
            f"{least['theirs'] / 2**20:12.1f} MiB{least['ours'] / 2**20:7.1f} MiB{worse}"
        )


if __name__ == "__main__":
    main()

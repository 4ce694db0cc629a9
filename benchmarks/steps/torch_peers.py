"""PyTorch's own plans in our simulator: recompute time at the peaks of ``activation_memory_budget``.

PyTorch's partitioner decides which tensors cross from the forward to the backward pass; the order of its two
graphs is a schedule of our graph, so our simulator computes its cost and peak. For each network, each of
PyTorch's solvers and each budget 1.0 … 0.0:

    theirs(solver, budget) = (peak, cost) of that schedule          ours(peak) = cost of our answer within it

Costs are our profiled seconds, for both. Ours must be no larger at any of their peaks; the last columns are
the least peaks of both. PyTorch's plans recompute batch norm wrongly in training; the simulator ignores that,
in their favour.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

import checkmate
from checkmate import DFGraph, Schedule
from checkmate_torch.planning.decide import price_step
from checkmate_torch.planning.options import Options
from checkmate_torch.private import Joint
from checkmate_torch.tracing.joint_graph import trace_joint
from checkmate_torch.tracing.traced_graph import TracedGraph
from steps.process import Row, answer
from zoo.small_torch import CASES

THEIRS = ("dp", "greedy", "ilp")


def measure(task: Row) -> Row:
    """Each distinct peak of PyTorch's plans, the cheapest of them there, and our plan within it.

    Args:
        task: ``network``, ``budgets`` that PyTorch is given, ``time_limit`` of our solver in seconds.
    """
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)  # copies of joint graphs cause a warning inside of PyTorch
    graph, points = points_of(task["network"], task["budgets"])
    best: dict[int, tuple[float, str, float]] = {}
    for peak, cost, solver, budget in points:
        best[peak] = min(best.get(peak, (cost, solver, budget)), (cost, solver, budget))
    found = []
    for peak, (cost, solver, budget) in sorted(best.items(), reverse=True):
        ours = checkmate.solve(graph, peak, fixed_order=True, time_limit=task["time_limit"])
        point = {"peak": peak, "solver": solver, "budget": budget, "theirs": cost / graph.ideal_cost - 1}
        found.append(point | {"ours": ours.overhead})
    least = checkmate.minimum_budget(graph, solver="auto", time_limit=task["time_limit"], fixed_order=True)
    return {"points": found, "least": least.peak}


def points_of(model: str, budgets: list[float]) -> tuple[DFGraph, list[tuple[int, float, str, float]]]:
    """The priced graph of a network, and (peak, cost, solver, budget) of each of PyTorch's plans."""
    case = CASES[model]()
    found: list[tuple[DFGraph, list[tuple[int, float, str, float]]]] = []

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
        plans = {}
        for solver in THEIRS:
            for budget in budgets:
                with torch._functorch.config.patch(
                    activation_memory_budget=budget, activation_memory_budget_solver=solver
                ):
                    graphs = min_cut_rematerialization_partition(
                        copy.deepcopy(joint), inputs, num_fwd_outputs=num_fwd_outputs, **more
                    )
                plans[solver, budget] = graphs
        traced = trace_joint(
            Joint(module=copy.deepcopy(joint), n_primals=len(inputs[0]), n_outputs=num_fwd_outputs),
            loss=None if case.targets is not None else 0,
        )
        options = Options.parse(budget="100%")
        traced = replace(traced, graph=price_step(options, traced.graph, traced.nodes))
        points = []
        for (solver, budget), graphs in plans.items():
            timeline = checkmate.simulate(traced.graph, schedule_of(traced, *graphs))
            points.append((timeline.peak, timeline.cost, solver, budget))
        found.append((traced.graph, points))
        return plans[THEIRS[0], budgets[0]]

    compiler: Callable[..., Any] = aot_autograd(
        fw_compiler=lambda gm, _: gm, bw_compiler=lambda gm, _: gm, partition_fn=partition
    )
    with torch._functorch.config.patch(donated_buffer=False):
        torch.compile(case.module, backend=compiler, fullgraph=True)(*case.inputs)
    return found[0]


def schedule_of(traced: TracedGraph, forward: Any, backward: Any) -> Schedule:
    """The order of two graphs as a schedule; their nodes have the names of the joint graph's.

    An op whose output the caller holds is not recomputed: its value is resident.
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


if __name__ == "__main__":
    answer(measure)

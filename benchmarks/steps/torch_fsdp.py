"""Training under FSDP2 by processes of one thread each: what each rank holds, with and without budgets.

The ranks are processes of this machine that talk through gloo. Peaks are those of the independent meter, over
model, optimizer and batch, from the second step on: the optimizer's state exists by then.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.optim import AdamW

import checkmate_torch
from checkmate import InfeasibleBudgetError
from checkmate_torch import memory_meter
from checkmate_torch.capture.fake_twins import fake_like
from checkmate_torch.memory.sharded_step import ShardedPeak
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.sharded.decide import ShardedPlan, ShardedSearch, ShardedTwin
from checkmate_torch.private import fake_mode, local_of
from steps.process import LEAST, Row, answer
from zoo.torch_fsdp import DEEPER, NETWORKS, Sharded, checkpointed, shard

_STEPS = 3
_SETTINGS: Any = {"time_limit": 2.0}
_WORLDS_BUDGET = "75%"
_NOTHING = 0.01
"""A share that no step is content with; the error says what the least budget is."""


def measure(task: Row) -> Row:
    """What all ranks found, the largest peaks of them.

    Args:
        task: ``network``, and what it ``asks``: budgets, with ``shares`` of the plain peak; checkpointing;
            ranks, without an optimizer; worlds, a prediction for each number of ranks. The number of
            ``ranks`` that run.
    """
    if task["asks"] == "worlds":
        return _worlds(task)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (task, folder), nprocs=task["ranks"])  # type: ignore[no-untyped-call]
        found = [json.loads((Path(folder) / f"{k}.json").read_text()) for k in range(task["ranks"])]
    row: Row = _together([each for each in found if each])
    return row


def _together(found: list[Any]) -> Any:
    """Of the answers of all ranks: the largest number, whether all say yes; else that of rank 0."""
    first = found[0]
    if isinstance(first, dict):
        return {name: _together([each[name] for each in found]) for name in first}
    if isinstance(first, list):
        return [_together([*each]) for each in zip(*found, strict=True)]
    if isinstance(first, bool):
        return all(found)
    return max(found) if isinstance(first, int | float) else first


def _rank(rank: int, task: Row, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=task["ranks"])
    row = {"budgets": _budgets, "checkpointing": _checkpointing, "ranks": _ranks}[task["asks"]](task)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(row))
    dist.destroy_process_group()


def _budgets(task: Row) -> Row:
    """A step within each share of the plain peak."""
    plain = _train(task["network"])
    row: Row = {"plain_measured": plain["measured"], "runs": []}
    least: int | None = None
    for share in task["shares"]:
        try:
            budget = f"{least}B" if share == LEAST and least is not None else f"{share or _NOTHING:.0%}"
            ours = _train(task["network"], budget)
        except InfeasibleBudgetError as error:
            least = error.minimum
            if share == LEAST:
                ours = _train(task["network"], f"{least}B")
            else:
                row["runs"].append({"needs": least})
                continue
        row["plain_predicted"] = ours.pop("plain_predicted")
        bits = all(map(torch.equal, ours.pop("values"), plain["values"]))
        row["runs"].append({**ours, "bits": bits})
    return row


def _checkpointing(task: Row) -> Row:
    """Each block recomputed as a whole, beside the plans of rank 0 at its peak, and at its extra cost.

    Their peak is rehearsed as ours are, so that both or neither count the copies that gloo frees late.
    """
    network = _made(task["network"])
    measured = torch.tensor(_train(task["network"], checkpoints=True)["measured"])
    dist.all_reduce(measured, dist.ReduceOp.MAX)
    shard(network, network.model)
    if dist.get_rank():
        return {}
    optimizer = AdamW(network.model.parameters(), lr=1e-3)
    options = Options.parse(budget="99%", optimizer=optimizer, process_group="alone", **_SETTINGS)
    mode = fake_mode()
    twin = ShardedTwin.of(network.model, mode, options)
    batch = network.batch(torch.Generator().manual_seed(dist.get_rank()))
    kwargs = {name: fake_like(x, mode) for name, x in batch.items()}
    search = ShardedSearch.of(twin, (), kwargs, options)
    theirs, again = _theirs(search), _again(search)
    row: Row = {"theirs_measured": int(measured), "theirs_predicted": theirs.peak, "theirs_overhead": again}
    row["at_their_cost"] = _at_cost(search, again)
    try:
        plan = search.within(theirs.bound)
    except InfeasibleBudgetError as error:
        return row | {"at_their_peak": {"needs": error.minimum}}
    return row | {"at_their_peak": {"predicted": plan.peak, "overhead": plan.overhead}}


def _theirs(search: ShardedSearch) -> ShardedPeak:
    """The memory of a step in which each block is recomputed by ``torch.utils.checkpoint``."""
    checkpointed(search.twin.sharded, search.twin.names)  # until the rehearsal ends, which restores blocks
    return search.peak({})


def _at_cost(search: ShardedSearch, most: float) -> Row:
    """The least peak at an extra cost of at most a share of the blocks' cost, by bisection over budgets."""
    found = None
    low, high = search.least().least_budget, search.plain.bound
    while high - low > high / 200:
        plan = search.within((low + high) // 2)
        if plan.overhead <= most:
            found, high = plan, (low + high) // 2
        else:
            low = (low + high) // 2
    return {} if found is None else {"predicted": found.peak, "overhead": found.overhead}


def _again(search: ShardedSearch) -> float:
    """The cost of computing each block again as a whole, as a share of the blocks' cost.

    ``torch.utils.checkpoint`` ends as soon as it has the last value that the backward pass reads.
    """
    again = once = 0.0
    for graph in (part.graph for part in search.graphs.values()):
        read = {t for op in graph.ops if op.backward for t in op.inputs}
        forward = [op for op in graph.ops if not op.backward]
        last = max((k for k, op in enumerate(forward) if not read.isdisjoint(op.outputs)), default=-1)
        again += sum(op.cost for op in forward[: last + 1])
        once += graph.ideal_cost
    return again / once


def _ranks(task: Row) -> Row:
    """A step without an optimizer, as :func:`_worlds` predicts it."""
    plain = _train(task["network"], optimizer=False, steps=2)
    ours = _train(task["network"], _WORLDS_BUDGET, optimizer=False, steps=2)
    return {"plain_measured": plain["measured"], "measured": ours["measured"]}


def _worlds(task: Row) -> Row:
    """Predictions for numbers of ranks that are not here, without an optimizer."""
    torch.set_num_threads(1)
    network = _made(task["network"])
    row: Row = {}
    for world in task["worlds"]:
        try:
            plan = checkmate_torch.plan(
                network.model,
                network.batch(torch.Generator()),
                _WORLDS_BUDGET,
                shard=lambda twin: shard(network, twin),
                world_size=world,
                **_SETTINGS,
            )
        except InfeasibleBudgetError as error:
            row[str(world)] = {"plain_predicted": error.whole, "needs": error.minimum}
            continue
        row[str(world)] = {
            "plain_predicted": plan.plain_peak,
            "predicted": plan.peak,
            "overhead": plan.overhead,
        }
    return row


def _made(name: str) -> Sharded:
    torch.manual_seed(0)
    return {**NETWORKS, **DEEPER}[name]()


def _train(
    name: str,
    budget: int | str | None = None,
    *,
    checkpoints: bool = False,
    optimizer: bool = True,
    steps: int = _STEPS,
) -> Row:
    """Train a network for some steps; with a budget, by a plan."""
    network = _made(name)
    if checkpoints:
        checkpointed(network.model, network.blocks)
    model = network.model
    shard(network, model)
    updates = AdamW(model.parameters(), lr=1e-3) if optimizer else None
    settings = {**_SETTINGS, "optimizer": updates}
    training = checkmate_torch.enable(model, budget, **settings) if budget is not None else None
    numbers = torch.Generator().manual_seed(dist.get_rank())
    torch.manual_seed(7)  # of dropout
    peak, gradients = 0, []
    for step in range(steps):
        batch = network.batch(numbers)
        with memory_meter(model, updates, batch) if step else nullcontext() as meter:
            _backward(model, batch)
            if updates is not None:
                updates.step()
        peak = peak if meter is None else max(peak, meter.peak)
        gradients = [local_of(p.grad).clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
    row: Row = {"measured": peak, "values": gradients + [local_of(p).clone() for p in model.parameters()]}
    if training is None:
        return row
    plan = cast("ShardedPlan", training.plans[-1])
    return row | {
        "budget": plan.budget,
        "predicted": plan.peak,
        "plain_predicted": plan.plain_peak,
        "within": peak <= plan.budget,
        "overhead": plan.overhead,
        "plans": len(training.plans),
    }


def _backward(model: nn.Module, batch: Mapping[str, Tensor]) -> None:
    """One forward and backward pass; nothing of it is held afterwards but the gradients."""
    found = model(**batch)
    (found if isinstance(found, Tensor) else found.loss).backward()


if __name__ == "__main__":
    answer(measure)

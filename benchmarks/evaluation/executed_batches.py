"""The largest batch, executed: the most examples with which a whole step trains within a physical limit.

Figure 6 of Jain et al., "Checkmate", MLSys 2020, with real steps in place of graphs. A step of the least cost
within the limit counts if

    cost ≤ 2 · Σ forward + Σ backward

in FLOPs (:mod:`evaluation.largest_batch`, eq. 10). Each batch that is tried has a process of its own, which
trains one whole step or fails. The batch grows until one fails, then the interval is halved, until

    failed − trained ≤ precision · trained
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evaluation.experiment import Experiment
from evaluation.largest_batch import PUBLISHED, title_of
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import Row as Answer
from steps.process import measured

__all__ = ["EXPERIMENTS", "METHODS", "largest", "paper_ratio", "ratios_of"]

METHODS = ("stock", "remat", "ours")
_COLUMNS: Mapping[str, int] = {"stock": 0, "remat": 1, "ours": 3}
"""Method → its column in the paper's figure: keep everything, √n checkpoints, the optimum."""
_MEANING = (
    "The largest batch that trained and, in parentheses, the least that was tried and failed. Ratios: the "
    "paper's (16 GB, on graphs) / here. “extra FLOPs”: of the schedule, and what one more forward pass "
    "costs. “loss differs by”: after two steps with a small batch, ours within its least budget, from stock."
)
_FIRST: Mapping[str, Mapping[str, tuple[int, tuple[int, int, int]]]] = {
    "tf": {
        "vgg19": (1024, (136, 190, 190)),
        "mobilenet": (1024, (239, 397, 660)),
        "resnet50": (1024, (121, 290, 350)),
        "unet": (1024, (124, 250, 270)),
        "segnet": (1024, (126, 200, 270)),
        "fcn8": (2048, (100, 180, 180)),
    },
    "torch": {
        "vgg19": (1024, (106, 124, 155)),
        "mobilenet": (1024, (211, 648, 920)),
        "resnet50": (1024, (140, 415, 640)),
        "unet": (1024, (109, 184, 189)),
        "segnet": (1024, (120, 186, 189)),
        "fcn8": (2048, (60, 80, 120)),
    },
}
"""By framework and network: the limit in MiB, and the batch to try first with each method."""
_QUICK: Mapping[str, tuple[int, tuple[int, int, int]]] = {"mobilenet": (128, (18, 40, 80))}
_LOSSES = {"method": "losses", "batch": 8}
_MIB = 2**20
_SIDE = 64
"""Pixels of the images."""
_OWN = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**16),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
_OUT_OF_MEMORY = (
    "ResourceExhausted",
    "OOM",
    "can't allocate memory",
    "could not create",
    "MemoryError",
    "exit -",
)
"""Parts of the messages of steps that found no memory; TensorFlow's kernels may end the process instead."""


def tasks(quick: bool, *, framework: str) -> Sequence[Task]:
    """Each method for each network; and the losses of all three at a small batch."""
    made: list[Task] = []
    precision, seconds = (0.25, 3.0) if quick else (0.025, 5.0)
    for network, (limit, firsts) in (_QUICK if quick else _FIRST[framework]).items():
        common = {"network": network, "side": _SIDE, "limit": limit, "time_limit": seconds}
        common |= {"precision": precision}
        made += [
            common | {"method": method, "first": first} for method, first in zip(METHODS, firsts, strict=True)
        ]
        made.append({"network": network, "side": _SIDE, "time_limit": seconds} | _LOSSES)
    return made


def measure(task: Task, *, module: str) -> Mapping[str, Any]:
    """The largest batch that trained, the facts of its step, and the batches that failed."""
    task = dict(task)
    if task["method"] == "losses":
        return measured(module, task, own=_OWN, throw=True)
    return largest(
        lambda batch: _tried(module, task | {"batch": batch}),
        first=task["first"],
        precision=task["precision"],
    )


def largest(step: Callable[[int], Answer], *, first: int, precision: float) -> Answer:
    """Search for the largest batch: by steps that double, then by bisection.

    Args:
        step: trains with a batch; its answer has ``failed`` if that was impossible, and if known ``share``,
            the memory that the batch needs as a share of the limit.
        first: the batch that is tried first.
        precision: the width of the last interval, as a share of the batch.

    Returns:
        the answer for the largest ``batch`` that trained, 0 if none did, and in ``failures`` what happened
        with the larger ones, by batch.
    """
    low, high, move = 0, 0, precision
    best: Answer = {}
    failures: dict[str, str] = {}
    batch = first
    while True:
        row = step(batch)
        if "failed" in row:
            high = batch
            failures[str(batch)] = row["failed"]
        else:
            low, best = batch, row
        if high and high - low <= max(1, precision * low):
            return best | {"batch": low, "failures": failures}
        if low and high:
            batch = (low + high) // 2
        else:
            less = int(high / row["share"]) if row.get("share") else int(high * (1 - min(move, 0.5)))
            batch = max(low + 1, int(low * (1 + move))) if low else max(1, min(high - 1, less))
            move *= 2


def _tried(module: str, task: Answer) -> Answer:
    """What the process of a batch answers.

    Raises:
        RuntimeError: if the step failed, and not for want of memory.
    """
    try:
        row = measured(module, task, own=_OWN | {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(task["limit"])})
    except RuntimeError as error:
        row = {"failed": str(error)}
    if "loss" in row:
        return row
    if "cost" in row:
        return {"failed": f"costs {row['overhead']:+.1%}, more than one more forward pass"}
    if "InfeasibleBudgetError" in row["failed"]:
        return {"failed": "refused", "share": (row.get("needs") or 0) / (task["limit"] * _MIB)}
    if any(part in row["failed"] for part in _OUT_OF_MEMORY):
        return {"failed": "out of memory"}
    raise RuntimeError(f"batch {task['batch']}: {row['failed']}")


def markdown(results: Results) -> str:
    """A line for each network, the paper's ratios beside ours."""
    lines = [_line(results, network) for network in PUBLISHED if any(results.where(network=network))]
    ratios = ("remat / stock", "ours / stock")
    head = ("network", "limit MiB", *METHODS, *ratios, "extra FLOPs", "loss differs by")
    return f"{_MEANING}\n\n{table(head, lines)}"


def _line(results: Results, network: str) -> Sequence[str]:
    found = {row["method"]: row for row in results.where(network=network)}
    ours, losses = found.get("ours"), found.get("losses")
    ratios = ratios_of(results, network)
    return (
        title_of(network),
        str(max(row["limit"] or 0 for row in found.values())),
        *(_batch(found.get(method)) for method in METHODS),
        *(f"{paper_ratio(network, method):.1f}× / {_times(ratios[method])}" for method in METHODS[1:]),
        "–"
        if ours is None or not ours["batch"]
        else f"{ours['overhead']:+.0%} of {ours['most_overhead']:+.0%}",
        "–" if losses is None else f"{abs(losses['ours'] / losses['stock'] - 1):.0e}",
    )


def _batch(row: Row | None) -> str:
    """The largest batch that trained, and the next one that was tried."""
    if row is None:
        return "–"
    failed = min(map(int, row["failures"]))
    return f"{row['batch']} ({failed}: {row['failures'][str(failed)]})"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio else "–"


def ratios_of(results: Results, network: str) -> Mapping[str, float]:
    """The largest batch of each method relative to stock's; 0 where one of them is missing."""
    found = {row["method"]: row["batch"] for row in results.where(network=network)}
    return {method: found.get(method, 0) / (found.get("stock") or math.inf) for method in METHODS}


def paper_ratio(network: str, method: str) -> float:
    """The published batch relative to keeping everything: that of √n checkpoints, or of the optimum."""
    batches = PUBLISHED[network]
    least, best = batches[0], batches[_COLUMNS[method]]
    return (best or 0) / (least or math.inf)


_TF = Experiment(
    name="executed-batches-tf",
    title="Largest batch, executed in TensorFlow",
    about="the largest batch that trains within a physical limit, for at most one more forward pass",
    tasks=partial(tasks, framework="tf"),
    measure=partial(measure, module="tf_batch"),
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-tf", "tensorflow-cpu", "keras", "numpy"),
    needs=("tensorflow",),
    alone=True,
)
EXPERIMENTS = (
    _TF,
    replace(
        _TF,
        name="executed-batches-torch",
        title="Largest batch, executed in PyTorch",
        tasks=partial(tasks, framework="torch"),
        measure=partial(measure, module="torch_batch"),
        packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "numpy"),
        needs=("torch",),
    ),
)

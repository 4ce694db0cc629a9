"""The largest batch, executed: the most examples with which a whole step trains within a physical limit.

Figure 6 of Jain et al., "Checkmate", MLSys 2020, with real steps in place of graphs. A step of the least cost
within the limit counts if

    cost ≤ 2 · Σ forward + Σ backward

in FLOPs (:mod:`evaluation.largest_batch`, eq. 10). Each batch that is tried has a process of its own, which
trains one whole step or fails. The batch grows until one fails, then the interval is halved, until

    failed − trained ≤ precision · trained
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Task
from pages import table
from steps.process import Row, measured

__all__ = ["EXPERIMENTS", "METHODS", "largest"]

_MIB = 2**20
METHODS = ("stock", "remat", "ours")
_COLUMNS = (0, 1, 3)
"""The paper's methods of the same kind: keep everything, its rule of checkpoints, its optimum."""
_FIRST: Mapping[str, Mapping[str, tuple[int, tuple[int, int, int]]]] = {
    "tf": {
        "vgg19": (1024, (136, 190, 190)),
        "mobilenet": (1024, (239, 397, 660)),
        "unet": (1024, (124, 250, 270)),
        "fcn8": (2048, (100, 180, 180)),
        "segnet": (1024, (126, 200, 270)),
        "resnet50": (1024, (121, 290, 350)),
    },
    "torch": {
        "vgg19": (1024, (111, 128, 161)),
        "mobilenet": (1024, (211, 648, 920)),
        "unet": (1024, (109, 184, 189)),
        "segnet": (1024, (120, 186, 189)),
        "resnet50": (1024, (140, 415, 640)),
        "fcn8": (2048, (60, 80, 120)),
    },
}
"""By framework and network: the limit in MiB, and the batch to try first with each method."""
_QUICK: Mapping[str, tuple[int, tuple[int, int, int]]] = {"mobilenet": (128, (24, 40, 60))}
_LOSSES = {"method": "losses", "batch": 8}
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
    precision, seconds = (0.25, 2.0) if quick else (0.025, 5.0)
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


def largest(step: Callable[[int], Row], *, first: int, precision: float) -> Row:
    """Search for the largest batch: by steps that double, then by bisection.

    Args:
        step: trains with a batch; its answer has ``failed`` if that was impossible.
        first: the batch that is tried first.
        precision: the width of the last interval, as a share of the batch.

    Returns:
        the answer for the largest ``batch`` that trained, 0 if none did, and in ``failures`` what happened
        with the larger ones, by batch.
    """
    low, high, move = 0, 0, precision
    best: Row = {}
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
            batch = max(low + 1, int(low * (1 + move))) if low else max(1, int(high * (1 - min(move, 0.5))))
            move *= 2


def _tried(module: str, task: Row) -> Row:
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
        return {"failed": "refused"}
    if any(part in row["failed"] for part in _OUT_OF_MEMORY):
        return {"failed": "out of memory"}
    raise RuntimeError(f"batch {task['batch']}: {row['failed']}")


def markdown(results: Results) -> str:
    """A line for each network."""
    return table(("network",), [[network] for network in results.distinct("network")])


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

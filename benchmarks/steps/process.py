"""One measurement in a process of its own: earlier measurements hold no memory and warm nothing up."""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkmate import Solution

__all__ = [
    "KEEPS_MEMORY",
    "LEAST",
    "SKIPPED",
    "Row",
    "answer",
    "failed",
    "measured",
    "one_more_pass",
    "timed",
]

Row = dict[str, Any]
LEAST = 0.0
"""Instead of a share: the least budget that is known to work."""

SKIPPED = "skipped: the time of this run is used up"
"""The answer in the place of a measurement for which a run had no time."""

_SILENT = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TORCH_LOGS": "-all"}
"""With TensorFlow's own CPU allocator, the meter counts small buffers, too."""

KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
"""The C library keeps freed memory, as PyTorch does on a GPU. Where it returned memory and took it again,
page faults took up to 15 % of a step, of plain PyTorch's as of ours, as the heap happened to lie."""


def measured(
    module: str,
    task: Mapping[str, Any],
    *,
    throw: bool = False,
    limit_s: float | None = None,
    own: Mapping[str, str] | None = None,
) -> Row:
    """Run ``steps.MODULE`` on a task in a fresh process.

    Args:
        module: name in ``steps``.
        task: the argument of its ``measure``.
        throw: whether an exception there raises here; else the answer is ``{"failed": message}``, so that
            the inability of a method becomes a row.
        limit_s: seconds after which the process is killed; None = no limit.
        own: further variables of its environment.

    Raises:
        RuntimeError: if the process dies, with the end of its output; if it is killed.
    """
    command = [sys.executable, "-m", f"steps.{module}", json.dumps(dict(task))]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {
        "CHECKMATE_CACHE_DIR": _cache(),
        **_SILENT,
        **os.environ,
        "PYTHONPATH": path,
        **(own or {}),
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {limit_s} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()[-300:]}")
    row: Row = json.loads(lines[-1])
    if throw and "failed" in row:
        raise RuntimeError(row["failed"])
    return row


@functools.cache
def _cache() -> str:
    """A cache folder for this run only: older plans and profiles are from other states of the machine."""
    folder = tempfile.mkdtemp(prefix="checkmate-benchmark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def answer(measure: Callable[[Row], Row]) -> None:
    """Answer the task of the command line; an exception of a method is its row."""
    try:
        row = measure(json.loads(sys.argv[1]))
    except Exception as failure:  # noqa: BLE001
        row = failed(failure)
    print(json.dumps(row))


def failed(failure: Exception) -> Row:
    """The row of an exception."""
    cause = getattr(failure, "inner_exception", failure)  # Dynamo wraps what a backend raises
    row: Row = {"failed": f"{type(cause).__name__}: {(str(cause).splitlines() or [''])[0][:200]}"}
    if minimum := getattr(cause, "minimum", None):  # of an InfeasibleBudgetError, in bytes
        row["needs"] = minimum
    return row


def one_more_pass(solution: Solution) -> Row:
    """The cost of a schedule, the most it may be for one more forward pass, and both relative to one step."""
    graph = solution.problem.graph
    forward = math.fsum(op.cost for op in graph.ops if not op.backward)
    most = (graph.ideal_cost + forward) * (1 + 1e-12)  # the arithmetic of floats
    once = graph.ideal_cost
    return {
        "cost": solution.cost,
        "most_cost": most,
        "overhead": solution.cost / once - 1,
        "most_overhead": forward / once,
    }


def timed(step: Callable[[], Any], plain: Callable[[], Any], spend_s: float) -> Row:
    """Median seconds of a step, and its extra time over a plain one.

    The two alternate, so that other load on the machine affects both alike; the extra time is the median of
    the ratios of such pairs.

    Args:
        step: the step to measure.
        plain: the step to compare with.
        spend_s: seconds for all pairs; there are at least three.
    """
    ours: list[float] = []
    theirs: list[float] = []
    end = time.perf_counter() + spend_s
    while len(ours) < 3 or time.perf_counter() < end:
        for run, seconds in ((step, ours), (plain, theirs)):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return {"step_s": statistics.median(ours), "time_overhead": ratio - 1, "pairs": len(ours)}

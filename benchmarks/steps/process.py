"""One measurement in a process of its own: nothing that ran before can hold memory or warm anything up."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["LEAST", "Row", "answer", "measured", "timed"]

Row = dict[str, Any]
LEAST = 0.0
"""Instead of a share: the least budget that is known to work."""

_SILENT = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TORCH_LOGS": "-all"}
"""With TensorFlow's own CPU allocator, its meter sees small buffers, too."""


def measured(module: str, task: Mapping[str, Any], *, throw: bool = False) -> Row:
    """What ``steps.MODULE`` says of a task, in a fresh process.

    Args:
        module: its name.
        task: what its ``measure`` takes.
        throw: whether an exception there is an error here; else it is an answer, ``{"failed": message}``:
            that a method can't do something is worth a row.

    Raises:
        RuntimeError: if the process dies; with the end of its output.
    """
    command = [sys.executable, "-m", f"steps.{module}", json.dumps(dict(task))]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {"CHECKMATE_CACHE_DIR": _cache(), **_SILENT, **os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()[-300:]}")
    row: Row = json.loads(lines[-1])
    if throw and "failed" in row:
        raise RuntimeError(row["failed"])
    return row


@functools.cache
def _cache() -> str:
    """Plans and profiles of this run, and no other: those were made in other states of the machine."""
    folder = tempfile.mkdtemp(prefix="checkmate-benchmark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def answer(measure: Callable[[Row], Row]) -> None:
    """Answer the task of the command line; whatever a method raises is its row."""
    try:
        row = measure(json.loads(sys.argv[1]))
    except Exception as failure:  # noqa: BLE001
        cause = getattr(failure, "inner_exception", failure)  # Dynamo wraps what a backend raises
        row = {"failed": f"{type(cause).__name__}: {(str(cause).splitlines() or [''])[0][:200]}"}
    print(json.dumps(row))


def timed(step: Callable[[], Any], plain: Callable[[], Any], spend_s: float) -> Row:
    """Median seconds of a step, and how much longer it takes than a plain one.

    The two run in turn, so that what else the machine does hits both alike; the extra time is the median of
    the ratios of such pairs.

    Args:
        step: what is measured.
        plain: what it is compared with.
        spend_s: how long this may take; there are at least three pairs.
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

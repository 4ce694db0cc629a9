"""One solve in a process of its own, as :mod:`evaluation.solving` starts it with a task in JSON.

The process pins itself to one core, and solves two tiny graphs so that everything is imported and compiled
before the clock starts. Each report of the solver is written as a line of a file at once, so that the parent
knows the progress of a process that died. The operating system limits the memory, and ends the process by
SIGALRM long after its time limit; a solver cannot prevent either.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from checkmate import DFGraph, Progress, Solution, generators, read_graph, solve
from checkmate.errors import PluginError
from checkmate.plugins import SOLVERS, Solver

_LONGEST = 200
_WARM_S = 3.0
"""Time limit of a tiny graph, which imports what the solvers need."""
_CLOCKS = {"wall": time.monotonic, "cpu": time.process_time}
_WARM: tuple[tuple[Callable[[], DFGraph], float], ...] = (
    (lambda: generators.chain(8), 0.5),
    (lambda: generators.residual(2), 0.6),
)


def main() -> None:
    """Run the task of the command line, and append each fact to its file."""
    task = json.loads(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (task["memory"], most))
    with Path(task["report"]).open("a", buffering=1, encoding="utf-8") as file:

        def tell(**fact: Any) -> None:
            file.write(json.dumps(fact) + "\n")

        try:
            tell(result=measured(task, tell))
        except Exception as error:  # noqa: BLE001  # an exception of a solver is its result
            outcome = "not installed" if _is_missing(error) else "failed"
            tell(result={"outcome": outcome, "note": f"{type(error).__name__}: {error}"[:_LONGEST]})


def measured(task: dict[str, Any], tell: Callable[..., None]) -> dict[str, Any]:
    """Load, warm up and solve; return the fields of the result."""
    graph, solver = read_graph(Path(task["graph"])), named(task["solver"])
    ask = partial(solve, solver=solver, fixed_order=task["fixed_order"], seed=task["seed"], throw=False)
    for small, share in _WARM:
        with contextlib.suppress(Exception):
            ask(small(), share, time_limit=_WARM_S)
    signal.setitimer(signal.ITIMER_REAL, task["kill_s"])
    clock = _CLOCKS[task["clock"]]
    started = clock()
    found = ask(
        graph,
        task["budget"],
        time_limit=task["time_limit"],
        on_progress=_listener(lambda: clock() - started, lambda *moment: tell(moment=moment)),
    )
    seconds = clock() - started
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return _fields(found, seconds) | {"peak_rss": peak_rss()}


def named(solver: str) -> Solver:
    """An installed solver by name, or the class ``module:Name``."""
    module, colon, name = solver.partition(":")
    if not colon:
        return SOLVERS.load(solver)
    value: Solver = getattr(importlib.import_module(module), name)()
    return value


def peak_rss() -> int:
    """Largest resident memory of this process, in bytes; on Linux ``ru_maxrss`` includes the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _listener(seconds: Callable[[], float], tell: Callable[..., None]) -> Callable[[Progress], None]:
    """A listener that passes on each improvement, with the seconds of our clock."""
    best: list[float] = [math.inf, 0.0]

    def listen(report: Progress) -> None:
        cost = math.inf if report.incumbent is None else report.incumbent
        bound = report.bound if math.isfinite(report.bound) else 0.0  # infinite: proved infeasible
        if cost < best[0] or bound > best[1]:
            best[:] = min(cost, best[0]), max(bound, best[1])
            tell(seconds(), None if best[0] == math.inf else best[0], best[1])

    return listen


def _fields(found: Solution, seconds: float) -> dict[str, Any]:
    none = found.schedule is None
    return {
        "outcome": str(found.status),
        "cost": None if none else found.cost,
        "bound": None if found.bound == math.inf else found.bound,
        "peak": found.peak,
        "seconds": seconds,
        "origin": dict(found.origin),
    }


def _is_missing(error: BaseException) -> bool:
    """Whether no solver has this name, or one of its imports is not installed."""
    cause, found = error.__cause__, isinstance(error, ImportError)
    if isinstance(error, PluginError) and cause is None:
        return True
    return found or (cause is not None and _is_missing(cause))


if __name__ == "__main__":
    main()

"""Rows: each solve in a fresh process, so that no solver can stop the run or lend the next one its memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from checkmate.plugins import SolverSpec, installed_plugins
from solvers.cases import Case
from solvers.records import GraphFacts, Key, Moment, Row, Settings, thinned

__all__ = ["Limits", "Solve", "measured", "solves_of"]

_WARM_UP_S = 300.0
"""Compiling may take this long, the first time."""
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solve:
    """One solver asked one case with one seed."""

    case: Case
    solver: str
    seed: int

    @property
    def key(self) -> Key:
        """The key of its row."""
        return self.case.graph, self.case.share, self.solver, self.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a process may use: seconds after the time limit, and bytes; then it is stopped.

    What it reports are seconds of the ``clock``: ``wall``, or ``cpu`` where others use the core as well.
    """

    late_s: float = 20.0
    memory: int = 8 * 2**30
    clock: Literal["wall", "cpu"] = "wall"


def solves_of(cases: Iterable[Case], solvers: Iterable[str], seeds: Iterable[int]) -> list[Solve]:
    """Case by case, every solver with every seed; core's own rules, which know no chance, with the first."""
    seeds = list(seeds)
    core = [plugin for plugin in installed_plugins() if plugin.distribution == "checkmate-core"]
    rules = {spec.name for plugin in core for spec in plugin.offers if isinstance(spec, SolverSpec)}
    of = {solver: seeds[:1] if solver in rules else seeds for solver in solvers}
    return [Solve(case=c, solver=s, seed=seed) for c in cases for s in of for seed in of[s]]


def measured(
    solves: Iterable[Solve], graphs: dict[str, GraphFacts], settings: Settings, limits: Limits
) -> Iterator[Row]:
    """A row for each, as it is there. What is not installed is tried once.

    Args:
        solves: what to measure.
        graphs: by name.
        settings: of the run.
        limits: of each process.
    """
    missing: dict[str, str] = {}
    for solve in solves:
        budget = max(1, int(solve.case.share * graphs[solve.case.graph].keep_all_peak))
        if solve.solver in missing:
            found: dict[str, Any] = {"outcome": "not installed", "note": missing[solve.solver]}
        else:
            found = _attempt(solve, budget, settings, limits)
        if found["outcome"] == "not installed":
            missing[solve.solver] = found["note"]
        graph, share, solver, seed = solve.key
        yield Row(graph=graph, share=share, budget=budget, solver=solver, seed=seed, **found)


def _attempt(solve: Solve, budget: int, settings: Settings, limits: Limits) -> dict[str, Any]:
    """Start the process, wait, read what it left."""
    kill_s = settings.time_limit + limits.late_s
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        report.touch()
        task = {
            "graph": str(solve.case.file),
            "solver": solve.solver,
            "seed": solve.seed,
            "budget": budget,
            "time_limit": settings.time_limit,
            "fixed_order": settings.fixed_order,
            "kill_s": kill_s,
            "memory": limits.memory,
            "clock": limits.clock,
            "report": str(report),
        }
        code, stderr = _run(task, _WARM_UP_S + kill_s)
        facts = [
            json.loads(line) for line in report.read_text(encoding="utf-8").splitlines() if line[-1] == "}"
        ]
    moments = [Moment(*fact["moment"]) for fact in facts if "moment" in fact]
    results = [fact["result"] for fact in facts if "result" in fact]
    fields = results[-1] if results else _death(code, stderr, kill_s, moments)
    if fields.get("cost") is not None:
        moments.append(Moment(fields["seconds"], fields["cost"], fields["bound"]))
    return fields | {"moments": thinned([_rounded(m) for m in moments])}


def _run(task: dict[str, Any], timeout: float) -> tuple[int | None, str]:
    """How the process ended (None: not by itself), and what it wrote on its standard error."""
    command = [sys.executable, str(Path(__file__).with_name("attempt.py")), json.dumps(task)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | _ONE_THREAD,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, stderr = process.communicate(timeout=timeout)
        return process.returncode, stderr
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _death(code: int | None, stderr: str, kill_s: float, moments: list[Moment]) -> dict[str, Any]:
    """The fields of a row whose process gave no result."""
    seen = [m for m in moments if m.cost is not None]
    last = f"; at {seen[-1].seconds:.1f} s it had reported a cost of {seen[-1].cost:g}" if seen else ""
    if code is None:
        return {"outcome": "killed", "note": f"still getting ready after {_WARM_UP_S:.0f} s"}
    if code == -signal.SIGALRM:
        return {"outcome": "killed", "note": f"still running after {kill_s:.0f} s{last}"}
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = stderr.strip().splitlines()
    said = f": {lines[-1][:200]}" if lines else ""
    return {"outcome": "crashed", "note": f"{how}{said}{last}"}


def _rounded(moment: Moment) -> Moment:
    return Moment(round(moment.seconds, 4), moment.cost, moment.bound)

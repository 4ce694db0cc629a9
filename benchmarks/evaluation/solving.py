"""One solve in a fresh process, so that no solver can stop the run or influence the next solve.

``attempt.py`` runs in that process: pinned to one core, warmed up, with a limit on its memory. This module
starts it, waits, and reads the moments that it reported, each the best cost and bound known at some second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from checkmate import DFGraph, keep_all_peak, write_graph

__all__ = ["Moment", "cost_s", "gap_s", "solved", "thinned"]

Moment = Sequence[Any]
"""Seconds, cost (None without a schedule), bound."""

_NEAR = 0.01
_SAME = 1e-9
_NEWS = 1e-5
_MEMORY = 8 * 2**30
_WARM_UP_S = 300.0
"""Compiling may take this long, the first time."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def solved(
    graph: DFGraph,
    share: float,
    solver: str,
    *,
    time_limit: float,
    late_s: float,
    clock: Literal["wall", "cpu"] = "cpu",
    fixed_order: bool = False,
    memory: int = _MEMORY,
    seed: int = 0,
) -> dict[str, Any]:
    """Run one solver in a fresh process; costs are relative to computing every op once.

    Args:
        graph: the graph.
        share: budget / peak without recomputation.
        solver: its name, or ``module:Class``.
        time_limit: wall seconds.
        late_s: seconds after the limit at which the process is killed.
        clock: which seconds are reported; CPU seconds where other processes share the core.
        fixed_order: whether first runs of ops keep the graph's order.
        memory: bytes that the process may allocate.
        seed: of the solver's random choices.

    Returns:
        ``ended`` (the simulated status, or ``failed``, ``crashed``, ``killed``, ``not installed``) and the
        reason in ``note``; ``cost`` (None without a schedule), ``bound``, ``peak`` in bytes, ``seconds``;
        seconds to the first schedule (``first_s``), to one within 1 % of the final cost (``near_s``) and to
        the final one (``final_s``); ``held``, the largest resident memory of the process in bytes;
        ``moments``, each improvement of cost or bound; ``ops`` and ``budget`` in bytes; ``origin``.
    """
    budget, once = max(1, int(share * keep_all_peak(graph))), graph.ideal_cost or 1.0
    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder) / "graph.json", Path(folder) / "report"
        write_graph(file, graph)
        report.touch()
        task = {
            "graph": str(file),
            "solver": solver,
            "seed": seed,
            "budget": budget,
            "time_limit": time_limit,
            "fixed_order": fixed_order,
            "kill_s": time_limit + late_s,
            "memory": memory,
            "clock": clock,
            "report": str(report),
        }
        code, stderr = _run(task)
        lines = report.read_text(encoding="utf-8").splitlines()
    facts = [json.loads(line) for line in lines if line[-1] == "}"]
    moments: list[Moment] = [fact["moment"] for fact in facts if "moment" in fact]
    results = [fact["result"] for fact in facts if "result" in fact]
    found = results[-1] if results else _death(code, stderr, task["kill_s"], moments)
    cost, bound = found.get("cost"), found.get("bound")
    if cost is not None:
        moments.append((found["seconds"], cost, bound))
    return {
        "ops": graph.n_ops,
        "budget": budget,
        "ended": found["outcome"],
        "note": found.get("note", ""),
        "cost": _over(cost, once),
        "bound": _over(bound, once),
        "peak": found.get("peak"),
        "first_s": cost_s(moments, float("inf")),
        "near_s": None if cost is None else cost_s(moments, cost * (1 + _NEAR)),
        "final_s": None if cost is None else cost_s(moments, cost),
        "seconds": round(found["seconds"], 4) if "seconds" in found else None,
        "held": found.get("peak_rss"),
        "moments": [[round(s, 4), _over(c, once), b / once] for s, c, b in thinned(moments)],
        "origin": found.get("origin", {}),
    }


def cost_s(moments: Iterable[Moment], cost: float) -> float | None:
    """Seconds until a schedule cost at most this; None: never."""
    most = cost * (1 + _SAME)
    return next((round(s, 4) for s, c, _ in moments if c is not None and c <= most), None)


def gap_s(moments: Iterable[Moment], gap: float) -> float | None:
    """Seconds until (cost − bound) / cost was at most this; None: never."""
    return next((s for s, c, bound in moments if c is not None and c - bound <= gap * c), None)


def thinned(moments: Sequence[Moment]) -> list[Moment]:
    """Moments without those that changed cost and bound by less than a thousandth of a percent.

    The last one stays.
    """
    kept: list[Moment] = []
    for moment in moments:
        if not kept or _is_news(kept[-1], moment):
            kept.append(moment)
    if moments and kept[-1] != moments[-1]:
        kept.append(moments[-1])
    return kept


def _is_news(before: Moment, after: Moment) -> bool:
    (_, cost, bound), (_, new_cost, new_bound) = before, after
    if cost is None or new_cost is None:
        return cost is not new_cost or new_bound > bound * (1 + _NEWS)
    return new_cost < cost * (1 - _NEWS) or new_bound > bound * (1 + _NEWS)


def _over(cost: float | None, once: float) -> float | None:
    return None if cost is None else cost / once


def _run(task: dict[str, Any]) -> tuple[int | None, str]:
    """The exit code of the process (None: it had to be killed), and its standard error."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("attempt.py")), json.dumps(task)]
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
        _, stderr = process.communicate(timeout=_WARM_UP_S + task["kill_s"])
        return process.returncode, stderr
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _death(code: int | None, stderr: str, kill_s: float, moments: Sequence[Moment]) -> dict[str, Any]:
    """The outcome of a process that gave no result."""
    seen = [(s, cost) for s, cost, _ in moments if cost is not None]
    last = f"; at {seen[-1][0]:.1f} s it had reported a cost of {seen[-1][1]:g}" if seen else ""
    if code is None:
        return {"outcome": "killed", "note": f"still warming up after {_WARM_UP_S:.0f} s"}
    if code == -signal.SIGALRM:
        return {"outcome": "killed", "note": f"still running after {kill_s:.0f} s{last}"}
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = stderr.strip().splitlines()
    said = f": {lines[-1][:200]}" if lines else ""
    return {"outcome": "crashed", "note": f"{how}{said}{last}"}

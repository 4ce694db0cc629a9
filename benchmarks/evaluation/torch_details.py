"""Smaller experiments in PyTorch: its own plans, gradients under dropout, the overhead of our replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from evaluation.executions import STEPS_TORCH
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import LEAST, measured

__all__ = ["EXPERIMENTS"]

_NETWORKS = ("mlp", "resnet18", "unet", "gpt2")
_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, LEAST)
_SAME = 1e-9


def peers_tasks(quick: bool) -> Sequence[Task]:
    """Each network, at each of PyTorch's budgets."""
    budgets, time_limit = ([0.5, 0.2], 3.0) if quick else (list(_SHARES), 10.0)
    networks = ("gpt2",) if quick else _NETWORKS
    return [{"network": name, "budgets": budgets, "time_limit": time_limit} for name in networks]


def peers_markdown(results: Results) -> str:
    """A line for each peak of PyTorch's plans."""
    rows, worse = [], 0
    for row in results.where():
        for point in row["points"]:
            worse += point["ours"] > point["theirs"] + _SAME
            theirs = f"{point['solver']}, {point['budget']:g}"
            cells = f"{point['peak'] / 2**20:.1f}", theirs, f"{point['theirs']:.2%}", f"{point['ours']:.2%}"
            rows.append((row["network"], *cells))
    least = [
        (r["network"], f"{min(p['peak'] for p in r['points']) / 2**20:.1f}", f"{r['least'] / 2**20:.1f}")
        for r in results.where()
    ]
    return "\n\n".join(
        (
            f"Our plan recomputes more than PyTorch's at {worse} of {len(rows)} peaks. Each line: a peak "
            "that PyTorch's partitioner reaches, its solver and budget there, and the recompute time of "
            "both as a share of the step.",
            table(("network", "peak, MiB", "PyTorch's solver, budget", "PyTorch", "Checkmate"), rows),
            "The least peak of both:",
            table(("network", "PyTorch, MiB", "Checkmate, MiB"), least),
        )
    )


def dropout_tasks(quick: bool) -> Sequence[Task]:
    """Each method at each share, with dropout and without."""
    return [
        {"method": method, "share": share, "dropout": dropout}
        for share in ((0.5,) if quick else _SHARES[1::2])
        for dropout in (0.2, 0.0)
        for method in ("checkmate", "torch")
    ]


def dropout_markdown(results: Results) -> str:
    """A line for each share, a column for each method: error of the gradients, and peak."""
    ways = [(dropout, method) for dropout in (0.2, 0.0) for method in ("checkmate", "torch")]
    head = ["share", *(f"{method}, p = {dropout:g}" for dropout, method in ways)]
    rows = [
        [
            "least" if share == LEAST else f"{share:.0%}",
            *(
                next(map(_error, results.where(share=share, dropout=p, method=method)), "–")
                for p, method in ways
            ),
        ]
        for share in results.distinct("share")
    ]
    return table(head, rows)


def replay_tasks(quick: bool) -> Sequence[Task]:
    """Each network."""
    return [{"network": n, "spend_s": 2.0 if quick else 10.0} for n in (("gpt2",) if quick else _NETWORKS)]


def replay_markdown(results: Results) -> str:
    """A line for each network."""
    rows = [
        (r["network"], f"{1000 * r['step_s']:.0f}", f"{r['over_eager']:+.1%}", f"{r['over_aot_eager']:+.1%}")
        for r in results.where()
    ]
    said = "Milliseconds of our step, and its extra time over both others."
    return f"{said}\n\n{table(('network', 'step, ms', 'over eager', 'over aot_eager'), rows)}"


def _error(row: Row) -> str:
    if row["failed"]:
        return "infeasible" if "Infeasible" in row["failed"] else "failed"
    return f"{row['gradient_error']:.0e} ({row['peak'] / row['plain_peak']:.0%})"


_torch = partial(Experiment, packages=STEPS_TORCH.packages, needs=("torch",))
EXPERIMENTS = (
    _torch(
        name="peers-torch",
        title="PyTorch's own plans",
        about="recomputation at every peak that activation_memory_budget reaches",
        tasks=peers_tasks,
        measure=partial(measured, "torch_peers", throw=True),
        markdown=peers_markdown,
    ),
    _torch(
        name="dropout-torch",
        title="Gradients under dropout",
        about="error of the gradients, ours and under activation_memory_budget",
        tasks=dropout_tasks,
        measure=partial(measured, "torch_dropout"),
        markdown=dropout_markdown,
        seeds=(0, 7),
    ),
    _torch(
        name="replay-torch",
        title="The replay in PyTorch",
        about="overhead of our executor at a budget of 100 %",
        tasks=replay_tasks,
        measure=partial(measured, "torch_replay", throw=True),
        markdown=replay_markdown,
        alone=True,
    ),
)

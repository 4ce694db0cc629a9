"""The host's time of steps without recomputation, beside plain PyTorch's.

``benchmarks/steps/torch_host.py`` measures, each network in a process of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import measured

__all__ = ["EXPERIMENT"]

_WAYS = ("enable", "compile_step")


def tasks(quick: bool) -> Sequence[Task]:
    """Each network in each way."""
    from zoo.torch_narrow import NETWORKS

    names = ("GPT-2",) if quick else tuple(NETWORKS)
    pairs = 5 if quick else 100
    return [{"network": name, "way": way, "pairs": pairs} for way in _WAYS for name in names]


def markdown(results: Results) -> str:
    """The mean of each way, and a line for each network."""
    parts = []
    for way in results.distinct("way"):
        rows = [row for row in results.where(way=way) if not row.failure]
        mean = statistics.fmean(row["ratio"] for row in rows)
        head = ("network", "plain ms", "planned ms", "planned / plain", "ops", "µs for each op")
        said = f"**`{way}`**: {mean:.2f} of plain PyTorch's time on average of {len(rows)} networks."
        parts += [said, table(head, list(map(_line, rows)))]
    failures = [f"- {row['network']}: {row.failure}" for row in results.rows if row.failure]
    return "\n\n".join([*parts, *(["\n".join(failures)] if failures else [])])


def _line(row: Row) -> Sequence[str]:
    return (
        row["network"],
        f"{1e3 * row['plain_s']:.2f}",
        f"{1e3 * row['step_s']:.2f}",
        f"{row['ratio']:.2f}",
        f"{row['ops']:,}",
        f"{1e6 * row['step_s'] / row['ops']:.1f}",
    )


EXPERIMENT = Experiment(
    name="host-time",
    title="The host's time",
    about="CPU time of steps of tiny tensors without recomputation, beside plain PyTorch's",
    tasks=tasks,
    measure=partial(measured, "torch_host", limit_s=300.0),
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "transformers"),
    needs=("torch", "transformers"),
    alone=True,
)

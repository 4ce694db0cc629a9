"""Keras' own rematerialization: layers that ``checkmate export --as keras-remat`` finds, trained by ``fit``.

``benchmarks/steps/keras_remat.py`` measures, each network in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Task
from pages import table
from steps.process import measured

__all__ = ["EXPERIMENT"]

NETWORKS = ("MLP", "ResNet", "transformer", "MobileNet", "MobileNet in blocks")
BUDGETS = ("80%", "60%", "45%")
_LIMIT_S = 1800.0
_MIB = 2**20
_CLOSE = 0.03
_HEAD = (
    *("network", "budget", "runs again", "peak MiB", "measured", "highest", "of budget"),
    *("extra", "our own", "proved", "scope works"),
)


def tasks(quick: bool) -> Sequence[Task]:
    """Each network with all budgets."""
    networks, budgets = (NETWORKS[:1], BUDGETS[:1]) if quick else (NETWORKS, BUDGETS)
    return [{"network": n, "budgets": [*budgets], "time_limit": 10.0} for n in networks]


def measure(task: Task) -> Mapping[str, Any]:
    """Answer one task in a process of its own."""
    return measured("keras_remat", task, limit_s=_LIMIT_S)


def markdown(results: Results) -> str:
    """The summary, the table, and what failed."""
    rows = list(_rows(results))
    failures = [f"- {row['network']}: {row.failure}" for row in results.rows if row.failure]
    parts = [_summary(rows), table(_HEAD, [_line(*row) for row in rows])] if rows else []
    return "\n\n".join(filter(None, [*parts, "\n".join(failures)]))


def _rows(results: Results) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for row in results.rows:
        if not row.failure:
            yield from ((row["network"], each) for each in row["rows"])


def _summary(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    asked = [row for _, row in rows if row["budget"] != "plain"]
    found = [row for row in asked if "failed" not in row]
    within = sum(max(row["measured"]) <= row["bytes"] for row in found)
    usual = sum(_usual(row) <= row["bytes"] for row in found)
    steps = [row for _, row in rows if "failed" not in row]
    close = sum(any(abs(row["peak"] / m - 1) <= _CLOSE for m in row["measured"]) for row in steps)
    above = sum(max(row["measured"]) > row["peak"] * (1 + _CLOSE) for row in steps)
    scope = sum(row["scope"] for row in found)
    off = max((row["gradients_off"] for row in found), default=0.0)
    return (
        f"Of {len(asked)} questions, {len(found)} have a list of layers. In `fit`, the usual peak of {usual} "
        f"is within the budget, the highest of all runs of {within}. The predicted peak is within "
        f"{_CLOSE:.0%} of some run's for {close} of {len(steps)} steps, the highest run is more than that "
        f"above it for {above}. `keras.RematScope` itself works in `fit` for {scope}. Gradients differ by at "
        f"most {off:.0e} of the largest number."
    )


def _usual(row: Mapping[str, Any]) -> int:
    """The median of the measured runs."""
    return int(sorted(row["measured"])[(len(row["measured"]) - 1) // 2])


def _line(network: str, row: Mapping[str, Any]) -> list[str]:
    if "failed" in row:
        return [network, row["budget"], "no list found", *[""] * (len(_HEAD) - 3)]
    peaks = [f"{size / _MIB:.1f}" for size in (row["peak"], _usual(row), max(row["measured"]))]
    if row["budget"] == "plain":
        return [network, "plain", "nothing", *peaks, *[""] * (len(_HEAD) - 6)]
    own = row["own_overhead"]
    return [
        *(network, row["budget"], row["policy"].removeprefix("remat of ")),
        *peaks,
        f"{max(row['measured']) / row['bytes']:.0%}",
        f"{row['overhead']:+.1%}",
        "" if own is None else f"{own:+.1%}",
        f"{row['bound']:+.1%}",
        "yes" if row["scope"] else "no",
    ]


EXPERIMENT = Experiment(
    name="keras-remat",
    title="Keras' own rematerialization",
    about="layers that checkmate export --as keras-remat finds for a budget, trained by Keras' fit",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-tf", "tensorflow-cpu", "keras", "numpy"),
    needs=("tensorflow",),
)

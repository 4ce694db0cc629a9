"""Networks of Keras and KerasHub within a budget, beside stock Keras and ``keras.remat``; steps that vary.

Each network is a process of its own (``benchmarks/steps/keras_world.py``), which tries every way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from evaluation.torch_world import varies_markdown
from pages import table
from steps.process import LEAST, measured

__all__ = ["EXPERIMENT", "VARIES"]

_LIMIT_S = 1500.0
_CLOSE = 1e-5
_NEAR = 0.03
_MIB = 2**20


def tasks(quick: bool) -> Sequence[Task]:
    """Each network."""
    from zoo.keras_world import NETWORKS

    return [{"network": name, "time_limit": 5.0} for name in (["siamese"] if quick else NETWORKS)]


def measure(task: Task) -> Mapping[str, Any]:
    """The peaks of stock Keras, in bytes, and what each way made of them."""
    return measured("keras_world", task, limit_s=_LIMIT_S)


def markdown(results: Results) -> str:
    """A summary, one line for each network and way, and the messages of the ways that failed."""
    head = (
        *("network", "stock MiB", "way", "budget", "expected", "measured", "of stock"),
        *("numbers", "extra time, predicted"),
    )
    lines = [line for row in results.rows for line in _lines(row)]
    said = [
        f"- {row['network']}, {_way(found)}: `{' '.join(found['failed'].replace('`', chr(39)).split())}`"
        for row in results.rows
        for found in _ways(row)
        if "failed" in found and not _is_refused(found)
    ]
    return "\n\n".join([_summary(results), table(head, lines), *(["\n".join(said)] if said else [])])


def varies_tasks(quick: bool) -> Sequence[Task]:
    """Each loop whose steps vary."""
    from zoo.keras_varies import VARYING

    tasks = [{"habit": name, "time_limit": 5.0} for name in VARYING]
    return tasks[:1] if quick else tasks


def varies_measure(task: Task) -> Mapping[str, Any]:
    """New plans, seconds of planning, and the peak of each step of a loop."""
    return measured("keras_varies", task, limit_s=_LIMIT_S)


def _summary(results: Results) -> str:
    rows = [row for row in results.rows if row["ways"]]
    ours = [found for row in rows for found in row["ways"] if found["way"] == "checkmate"]
    ran = [found for found in ours if "peak" in found]
    within = sum(found["peak"] <= found["budget"] for found in ran)
    equal = sum(found["equal"] for found in ran)
    close = sum(not found["equal"] and found["difference"] <= _CLOSE for found in ran)
    refused = sum(map(_is_refused, ours))
    plain = [(row, found["plain_peak"]) for row in rows for found in row["ways"][-1:] if "peak" in found]
    near = sum(
        (1 - _NEAR) * row["peak"] <= predicted <= (1 + _NEAR) * row["highest"] for row, predicted in plain
    )
    below, both = _beside_remat(rows)
    return (
        f"{len(results.rows)} networks. The measured peak is within the budget in {within} of {len(ran)} "
        f"trainings; {refused} further budgets were refused as too small, {len(ours) - len(ran) - refused} "
        f"trainings failed. All weights, slots and losses equal stock's to the bit in {equal} trainings; "
        f"the reported losses and metrics differ by at most {_CLOSE:.0e} of their value in {close} further "
        f"ones. The least budget is below the peak of `keras.remat` for "
        f"{below} of {both} networks. The peak that Checkmate expects of the plain step, of which it takes "
        f"percentages, is within {_NEAR:.0%} of stock's, which differs from run to run, for {near} of "
        f"{len(plain)} networks."
    )


def _beside_remat(rows: Sequence[Row]) -> tuple[int, int]:
    """The networks whose least peak is below the peak of ``keras.remat``; those that have both."""
    pairs = [
        (least["peak"], remat["peak"])
        for row in rows
        for remat in row["ways"]
        for least in row["ways"]
        if remat["way"] == "remat" and least.get("share") == LEAST and {"peak"} <= remat.keys() & least.keys()
    ]
    return sum(ours < theirs for ours, theirs in pairs), len(pairs)


def _ways(row: Row) -> Sequence[Mapping[str, Any]]:
    return row["ways"] or [{"way": "stock", "failed": row.failure}]


def _lines(row: Row) -> Iterator[Sequence[str]]:
    for found in _ways(row):
        first = (row["network"], f"{row['peak'] / _MIB:.1f}" if row["peak"] else "–", _way(found))
        if "failed" in found:
            yield (*first, *("–",) * 4, "refused" if _is_refused(found) else "failed", "–")
            continue
        yield (
            *first,
            *_sizes(found, "budget", "expected", "peak"),
            f"{found['peak'] / row['peak']:.0%}",
            "equal" if found["equal"] else f"{found['difference']:.0e}",
            f"{found['overhead']:+.1%}" if "overhead" in found else "",
        )


def _sizes(found: Mapping[str, Any], *names: str) -> Iterator[str]:
    return (f"{found[name] / _MIB:.1f}" if name in found else "" for name in names)


def _is_refused(found: Mapping[str, Any]) -> bool:
    return found.get("failed", "").startswith("InfeasibleBudgetError")


def _way(found: Mapping[str, Any]) -> str:
    if found["way"] != "checkmate":
        return "`keras.remat`" if found["way"] == "remat" else found["way"]
    return "least budget" if found["share"] == LEAST else f"{found['share']:.0%}"


EXPERIMENT = Experiment(
    name="keras-world",
    title="Networks of Keras and KerasHub",
    about="Keras' fit within a budget: bits, peaks and times of networks of Keras and KerasHub",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=(
        *("checkmate-core", "checkmate-solvers", "checkmate-tf"),
        *("tensorflow-cpu", "keras", "keras-hub", "numpy"),
    ),
    needs=("tensorflow", "keras_hub"),
)
VARIES = Experiment(
    name="keras-varies",
    title="Steps of Keras that vary",
    about="loops of Keras whose steps vary: new plans, seconds of planning, and the peak of each step",
    tasks=varies_tasks,
    measure=varies_measure,
    markdown=varies_markdown,
    packages=EXPERIMENT.packages,
    needs=("tensorflow",),
)

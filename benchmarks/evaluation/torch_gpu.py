"""Networks at their published sizes on a GPU: peaks, bits and times of each way to save memory.

``benchmarks/steps/torch_gpu.py`` measures, each network in a process of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import SKIPPED, measured

__all__ = ["EXPERIMENT", "SHORT_WAYS", "WAYS", "goals", "recorded", "within", "without_recorded"]

WAYS = ("own", "enable own", "enable 100%", "enable 60%", "compile_step least")
SHORT_WAYS = ("own", "enable own", "enable 100%", "compile_step 60% graph")
"""Those of a quick run, which compares no results; a captured step is timed without its graph, too."""
SMALL = 8
"""Examples of a batch whose steps wait for launches."""
_SMALL_FIRST = ("ResNet-50", "Swin-T")
"""Networks that have a goal for the small batch."""
_READS_MASKS = ("GPT-2", "BERT base", "Llama 3.2 1B")
_GRAPH = "compile_step 60% graph"
_LARGE = ("Llama 3.2 1B",)
"""Networks whose results are not compared: those of three runs are gigabytes each on the host."""

_LIMIT_S = 600.0
_LEAST_S = 20.0
"""Seconds that a network needs before its first figure."""
_NAMES = {
    "own": "its own checkpoints",
    "enable own": "enable, their peak",
    "enable 100% masked": "enable, 100%, read_masks=False",
}
_NOISE = 4.0
_until = math.inf


def within(seconds: float) -> None:
    """Start a limit of some seconds: once they have passed, this process skips what it has not measured."""
    global _until
    _until = time.monotonic() + seconds


def tasks(quick: bool) -> Sequence[Task]:
    """Each network; none without a GPU. A quick run begins with what has a goal."""
    import torch

    from zoo.torch_sizes import NETWORKS

    if not torch.cuda.is_available():
        return []
    settings: dict[str, Any] = {"device": "cuda", "cost_model": "profiled"}
    if not quick:
        settings |= {"ways": list(WAYS), "time_limit": 5.0, "spend_s": 2.0}
        return [{"network": n, "bits": n not in _LARGE, **settings} for n in NETWORKS]
    settings |= {"bits": False, "time_limit": 2.0, "spend_s": 1.0}
    large = [{"network": n, **settings, **_short(n)} for n in NETWORKS]
    small = [{"network": n, "n": SMALL, "ways": [_GRAPH], **settings} for n in NETWORKS]
    first = [task for task in small if task["network"] in _SMALL_FIRST]
    return [*first, *large, *(task for task in small if task not in first)]


def _short(network: str) -> dict[str, Any]:
    masked = ["enable 100% masked"] if network in _READS_MASKS else []
    return {"ways": [*SHORT_WAYS, *masked], "record": ["plain", "enable own"]}


def measure(task: Task) -> Mapping[str, Any]:
    """Answer one task in a process of its own.

    Raises:
        RuntimeError: if there is no answer within the time of this run.
    """
    left = _until - time.monotonic()
    if left < _LEAST_S:
        raise RuntimeError(SKIPPED)
    if left < math.inf:
        task = {**task, "left_s": left}
    return measured("torch_gpu", task, limit_s=min(_LIMIT_S, left))


def recorded(results: Results) -> list[dict[str, Any]]:
    """The allocations and op times that rows have: network, examples, way, and the columns."""
    return [
        {"network": row["network"], "n": row["n"], "way": way, **found["recorded"]}
        for row in results.rows
        for way, found in row.result.items()
        if isinstance(found, Mapping) and found.get("recorded")
    ]


def without_recorded(results: Results) -> Results:
    """The results without what :func:`recorded` returns, which is long."""

    def shorter(found: Any) -> Any:
        return {k: x for k, x in found.items() if k != "recorded"} if isinstance(found, Mapping) else found

    rows = tuple(
        replace(row, result={way: shorter(found) for way, found in row.result.items()})
        for row in results.rows
    )
    return replace(results, rows=rows)


def goals(results: Results) -> str:
    """A line for each figure that has an aim: the figure, the aim, and whether it is met."""
    lines = [line for row in results.rows if not row.failure for line in _goals(row)]
    return table(("network", "goal", "aim", "measured", "met"), lines)


def _goals(row: Row) -> Iterator[list[str]]:
    """The aims of one network: step times over that of plain PyTorch, or of the library's checkpoints."""
    at_100, own, at_own, graph = (row[way] or {} for way in ("enable 100%", "own", "enable own", _GRAPH))
    plain, over = row["plain"], graph.get("overhead", 1.0)
    small = row["n"] == SMALL and row["network"] in _SMALL_FIRST
    aims = [
        ("enable at 100% / plain", at_100, plain, 1.05, row["n"] is None),
        ("enable / own checkpoints, their peak", at_own, own, 1.0, row["n"] is None),
        ("captured at 60% / plain", graph, plain, 1.0, over <= 0.06 and not small),
        ("captured at 60% / plain, little work", graph, plain, 0.7, small),
    ]
    for what, found, beside, aim, holds in aims:
        if not holds:
            continue
        if "step_s" not in found or "step_s" not in beside:
            yield [_name(row), what, f"{aim:.2f}", found.get("failed", "not measured")[:60], ""]
            continue
        ratio = found["step_s"] / beside["step_s"]
        yield [_name(row), what, f"{aim:.2f}", f"{ratio:.2f}", "yes" if ratio <= aim else "no"]


def _name(row: Row) -> str:
    return row["network"] if row["n"] is None else f"{row['network']}, batch {row['n']}"


def markdown(results: Results) -> str:
    """A line for each network and way."""
    head = ("network", "way", "peak GiB", "of plain", "over budget MiB", "recomputed", "results", "step ms")
    failures = [f"- {row['network']}: {row.failure}" for row in results.rows if row.failure]
    lines = [line for row in results.rows if not row.failure for line in _lines(row)]
    return "\n\n".join([table(head, lines), *(["\n".join(failures)] if failures else [])])


def _lines(row: Row) -> Iterator[list[str]]:
    plain, name = row["plain"]["peak"], _name(row)
    for way in ("plain", *row.task["ways"]):
        found = row[way]
        said = [name, _NAMES.get(way, way.replace(" ", ", "))]
        if "failed" in found:
            why = "infeasible" if "needs" in found else "skipped" if found["failed"] == SKIPPED else "failed"
            yield [*said, why, *[""] * 5]
            continue
        yield [
            *said,
            f"{found['peak'] / 2**30:.2f}",
            f"{found['peak'] / plain:.0%}",
            f"{(found['live'] - found['budget']) / 2**20:+.2f}" if "budget" in found else "",
            f"{found['overhead']:+.1%}" if "overhead" in found else "",
            _bits(found),
            f"{1e3 * found['step_s']:.1f}" if "step_s" in found else "",
        ]
        if "uncaptured_s" in found:
            yield [name, f"{said[1]}, run without it", *[""] * 5, f"{1e3 * found['uncaptured_s']:.1f}"]


def _bits(found: Mapping[str, Any]) -> str:
    """How the results of three steps differ from plain PyTorch's."""
    if "difference" not in found:
        return ""
    if found["difference"] == 0:
        return "equal bits"
    far, over_traced = (math.inf if x is None else x for x in (found["difference"], found["over_aot_eager"]))
    noise = _NOISE * found["noise"]
    if far <= noise:
        return "as plain from itself"
    if over_traced == 0:
        return "bits of aot_eager"
    if over_traced <= noise:
        return "near aot_eager"
    return f"another {found['of'].rpartition('.')[2]}" if math.isinf(far) else f"{far:.0e}"


EXPERIMENT = Experiment(
    name="torch-gpu",
    title="Published sizes on a GPU",
    about="peaks, bits and times of networks at their published sizes on a GPU",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "transformers", "timm"),
    needs=("torch", "transformers", "timm"),
    alone=True,
)

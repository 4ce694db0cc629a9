"""Networks at their published sizes on a GPU: peaks, bits and times of each way to save memory.

``benchmarks/steps/torch_gpu.py`` measures, each network in a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import measured

__all__ = ["EXPERIMENT", "SHORT_WAYS", "WAYS"]

WAYS = ("own", "enable own", "enable 100%", "enable 60%", "compile_step least")
SHORT_WAYS = ("own", "enable own", "enable 100%", "compile_step 60%", "compile_step 60% graph")
"""Those of a quick run, which compares no results: with and without a CUDA graph of the whole step."""
_LARGE = ("Llama 3.2 1B",)
"""Networks whose results are not compared: those of three runs are gigabytes each on the host."""

_LIMIT_S = 600.0
_NAMES = {"own": "its own checkpoints", "enable own": "enable, their peak"}
_NOISE = 4.0


def tasks(quick: bool) -> Sequence[Task]:
    """Each network; none without a GPU."""
    import torch

    from zoo.torch_sizes import NETWORKS

    if not torch.cuda.is_available():
        return []
    ways = SHORT_WAYS if quick else WAYS
    settings = {"device": "cuda", "ways": list(ways), "cost_model": "profiled", "time_limit": 5.0}
    compared = () if quick else {*NETWORKS} - {*_LARGE}
    return [{"network": n, "bits": n in compared, "spend_s": 2.0, **settings} for n in NETWORKS]


def measure(task: Task) -> Mapping[str, Any]:
    """Answer one task in a process of its own."""
    return measured("torch_gpu", task, limit_s=_LIMIT_S)


def markdown(results: Results) -> str:
    """A line for each network and way."""
    head = ("network", "way", "peak GiB", "of plain", "over budget MiB", "recomputed", "results", "step ms")
    failures = [f"- {row['network']}: {row.failure}" for row in results.rows if row.failure]
    lines = [line for row in results.rows if not row.failure for line in _lines(row)]
    return "\n\n".join([table(head, lines), *(["\n".join(failures)] if failures else [])])


def _lines(row: Row) -> Iterator[list[str]]:
    plain = row["plain"]["peak"]
    for way in ("plain", *row.task["ways"]):
        found = row[way]
        said = [row["network"], _NAMES.get(way, way.replace(" ", ", "))]
        if "failed" in found:
            yield [*said, "infeasible" if "needs" in found else "failed", *[""] * 5]
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

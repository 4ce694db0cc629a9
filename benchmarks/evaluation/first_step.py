"""The first step of Keras' ``fit`` within a budget, beside stock: CPU seconds by stage.

Each first step is a process of its own (``benchmarks/steps/first_step.py``), without files of earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import measured

__all__ = ["EXPERIMENT"]

_NETWORKS = {
    **dict.fromkeys(("MobileNetV2", "ResNet50", "EfficientNetB0"), 0.8),
    "VGG19": 0.93,
    **dict.fromkeys(("DenseNet121", "DenseNet169", "NASNetMobile", "ResNet152"), 0.8),
}
"""Network ↦ budget, in shares of the peak without recomputation."""
_NEAR = 1.03
"""Multiple of the least known budget that is called near."""
_STAGES = (
    *("tracing", "rewriting", "reading", "timing ops", "counting", "solving", "building", "first run"),
    "elsewhere",
)


def tasks(quick: bool) -> Sequence[Task]:
    """Each network."""
    chosen = {"MobileNet": 0.8} if quick else _NETWORKS
    return [{"network": name, "share": share} for name, share in chosen.items()]


def measure(task: Task) -> Mapping[str, Any]:
    """The first step of stock Keras, within the budget, and near the least one."""
    network = {"network": task["network"]}
    stock, ours = (
        measured("first_step", network | {"budget": budget, "least": True}, throw=True)
        for budget in (None, task["share"])
    )
    near = network | {"budget": int(_NEAR * ours["least"]), "least": False}
    return {"stock": stock, "ours": ours, "near": measured("first_step", near)}


def markdown(results: Results) -> str:
    """One line for each network and way."""
    head = ("network", "way", "CPU s", *_STAGES)
    return table(head, (line for row in results.rows for line in _lines(row)))


def _lines(row: Row) -> Iterator[Sequence[str]]:
    ways = {"stock": "stock", "ours": f"{row['share']:.0%}", "near": "least + 3 %"}
    for way, text in ways.items():
        found = row[way] or {"failed": row.error}
        if "failed" in found:
            yield (row["network"], text, "failed", *("–",) * len(_STAGES))
        elif way == "stock":
            yield (row["network"], text, f"{found['seconds']:.1f}", *("",) * len(_STAGES))
        else:
            stages = (f"{found['stages'].get(stage, 0.0):.1f}" for stage in _STAGES)
            yield (row["network"], text, f"{found['seconds']:.1f}", *stages)


EXPERIMENT = Experiment(
    name="first-step",
    title="The first step within a budget",
    about="CPU seconds of a first step of Keras' fit within a budget, by stage, beside stock",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-tf", "tensorflow-cpu", "keras", "numpy"),
    needs=("tensorflow",),
    alone=True,
)

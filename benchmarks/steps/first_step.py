"""The first step of a network of ``keras.applications``: CPU seconds by stage, stock or within a budget.

CPU seconds are of all threads, and of child processes that have ended. Checkmate reports the stages
while it plans. Nothing is read from disk or kept there. The optimizer makes its slots in this step.
"""

from __future__ import annotations

import os
from collections import Counter

import tensorflow as tf

import checkmate
import checkmate.tf2
from steps.process import Row, answer
from zoo.keras_world import application

STAGES = {
    "tracing": "tracing",
    "rewriting the graph": "rewriting",
    "reading the graph": "reading",
    "timing": "timing ops",
    "counting bytes": "counting",
    "solving": "solving",
    "finding the least budget": "solving",
    "building the function": "building",
    "running the first step": "first run",
}
"""The beginning of a report ↦ the name of its stage in tables."""


def measure(task: Row) -> Row:
    """CPU seconds of the first step.

    Args:
        task: ``network``; ``budget``, None for stock; ``least``: whether to find the least budget afterwards.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model, (x, y) = application(task["network"])
    clock = _Clock()
    training = None
    if task["budget"] is not None:
        training = checkmate.tf2.enable(model, task["budget"], cache=False, on_progress=clock.report)
    clock.start()
    model.fit(x, y, batch_size=len(x), verbose=0)
    clock.switch("")
    row: Row = {"seconds": sum(clock.spent.values()), "stages": dict(clock.spent)}
    if training is not None:
        (plan,) = training.plans
        row |= {"ops": plan.graph.n_ops, "solver": plan.solution.solver}
        if task["least"]:
            row["least"] = checkmate.minimum_budget(plan.graph).peak
    return row


class _Clock:
    """CPU seconds of each stage."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        self._stage, self._since_s = "elsewhere", _cpu_s()

    def report(self, report: checkmate.Progress) -> None:
        """Begin the stage that a report names; other reports belong to the present one."""
        found = next((name for begins, name in STAGES.items() if report.step.startswith(begins)), None)
        if found is not None:
            self.switch(found)

    def switch(self, stage: str) -> None:
        now_s = _cpu_s()
        self.spent[self._stage] += now_s - self._since_s
        self._stage, self._since_s = stage, now_s


def _cpu_s() -> float:
    return sum(os.times()[:4])


if __name__ == "__main__":
    answer(measure)

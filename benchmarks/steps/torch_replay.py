"""The overhead of our executor: a step at a budget of 100 %, which needs no recomputation.

Three ways to run the same step alternate in one process: eager PyTorch,
``torch.compile(backend="aot_eager")``, and ``checkmate_torch.compile`` with ``budget="100%"``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

import checkmate_torch
from steps.process import Row, answer, timed
from zoo.small_torch import CASES, Case


def measure(task: Row) -> Row:
    """Extra time of ours over each of the other two, and of ``aot_eager`` over eager.

    Args:
        task: ``network``, and ``spend_s``, seconds for each comparison.
    """
    case = CASES[task["network"]]()
    ways = {way: way_to_run(case, way) for way in ("eager", "aot_eager", "checkmate")}
    for step in ways.values():
        step()
    ours, spend_s = ways["checkmate"], task["spend_s"]
    eager, aot = timed(ours, ways["eager"], spend_s), timed(ours, ways["aot_eager"], spend_s)
    return {
        "step_s": eager["step_s"],
        "over_eager": eager["time_overhead"],
        "over_aot_eager": aot["time_overhead"],
        "pairs": eager["pairs"],
    }


def way_to_run(case: Case, way: str) -> Any:
    """A step of a copy of the network, as a function without arguments."""
    module = copy.deepcopy(case.module)
    run: Any = module
    if way == "aot_eager":
        run = torch.compile(module, backend="aot_eager", fullgraph=True)
    elif way == "checkmate":
        run = checkmate_torch.compile(module, "100%")

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        case.loss(run(*case.inputs)).backward()  # type: ignore[no-untyped-call]

    return step


if __name__ == "__main__":
    answer(measure)

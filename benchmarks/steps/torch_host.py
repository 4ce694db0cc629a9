"""The host's time of a step without recomputation, beside plain PyTorch's: networks of tiny tensors.

Both run in this process on one thread, in turn; what counts is the CPU time of the process.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import checkmate_torch
from steps.process import Row, answer
from zoo.torch_narrow import NETWORKS

_BUDGET = "1GiB"
"""Far more than any of them needs."""

_SETTINGS: Any = {"cost_model": "flops", "time_limit": 2.0, "split": False}
_WARM_UP = 5


def measure(task: Row) -> Row:
    """Seconds of both steps, median of the ratios, and the ops of the planned one.

    Args:
        task: ``network``, ``way`` (enable, or compile_step with SGD) and the number of ``pairs``.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch = NETWORKS[task["network"]]()
    plain, ours = _ways(task["way"], model, batch)
    for _ in range(_WARM_UP):
        plain()
        found = ours()
    gc.disable()
    pairs = [(_seconds(plain), _seconds(ours)) for _ in range(task["pairs"])]
    return {
        "plain_s": statistics.median(a for a, _ in pairs),
        "step_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "ops": len(found.plans[0].solution.schedule.sequence),
    }


def _ways(way: str, model: Any, batch: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    planned = copy.deepcopy(model)
    if way == "enable":
        training = checkmate_torch.enable(planned, _BUDGET, **_SETTINGS)

        def of(module: Any) -> Callable[[], Any]:
            parameters = list(module.parameters())

            def step() -> Any:
                for x in parameters:
                    x.grad = None
                module(**batch).backward()
                return training

            return step

        return of(model), of(planned)
    optimizers = [torch.optim.SGD(x.parameters(), lr=1e-3) for x in (model, planned)]
    compiled = checkmate_torch.compile_step(planned, _loss, optimizers[1], _BUDGET, **_SETTINGS)

    def plain() -> None:
        optimizers[0].zero_grad()
        model(**batch).backward()
        optimizers[0].step()

    def ours() -> Any:
        compiled(**batch)
        return compiled

    return plain, ours


def _loss(model: Any, **batch: Any) -> Any:
    return model(**batch)


def _seconds(step: Callable[[], Any]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


if __name__ == "__main__":
    answer(measure)

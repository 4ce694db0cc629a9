"""Forward, loss and backward of the four networks of :mod:`zoo.small_torch`, by each way to save memory.

- ``plain``: PyTorch as it is.
- ``checkpoint``: ``torch.utils.checkpoint`` around every block.
- ``checkmate``: ``checkmate_torch.compile`` at a share of the plain peak, or within the least budget found.
- ``torch``: PyTorch's own ``activation_memory_budget`` (min-cut partitioner), on the traced ops;
  its graphs run as the same kind of generated code as Checkmate's.
- ``torch-decomposed``: the same on Inductor's decompositions, which it needs for batch norm.

Peaks are of live tensor bytes after a warm-up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.fx.graph import _BoxedCodeGen

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter, resident_bytes
from steps.process import LEAST, Row, answer, timed
from zoo.small_torch import CASES, Case

SIZES: dict[str, dict[str, Row]] = {
    "cpu": {},
    "cuda": {
        "mlp": {"width": 1024, "batch": 8192},
        "resnet18": {"width": 64, "image": 128, "batch": 64},
        "unet": {"width": 64, "image": 256, "batch": 16},
        "gpt2": {"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch": 8, "vocabulary": 16384},
    },
}
"""By device; larger than the defaults where a step would be too short to time."""


def measure(task: Row) -> Row:
    """Peak, time and gradients of one method, in this process.

    Args:
        task: ``network``, ``method``, ``share`` (of the plain peak, or PyTorch's budget),
            ``device``, ``time_limit`` of the solver and ``spend_s`` for timing, in seconds.
    """
    method, device = task["method"], task["device"]
    sizes = SIZES[device].get(task["network"], {})
    with torch.device(device):
        plain = CASES[task["network"]](**sizes)
        case = CASES[task["network"]](**sizes, checkpoint_blocks=method == "checkpoint")

    def step(case: Case, module: Any) -> None:
        for parameter in case.module.parameters():
            parameter.grad = None
        outputs = module(*case.inputs)  # held to the end of the step, as in most training loops
        case.loss(outputs).backward()  # type: ignore[no-untyped-call]
        if device == "cuda":
            torch.cuda.synchronize()

    def peak_of(case: Case, module: Any) -> int:
        for parameter in (*case.module.parameters(), *plain.module.parameters()):
            parameter.grad = None
        others = resident_bytes(plain.module, plain.inputs, plain.targets) if device == "cuda" else 0
        with memory_meter(case.module, case.inputs, case.targets) as meter:
            step(case, module)
        return int(meter.peak) - (others if case is not plain else 0)

    step(plain, plain.module)
    plain_peak = peak_of(plain, plain.module)
    module, facts = prepared(case, task, plain_peak, partial(step, case))
    step(plain, plain.module)
    step(case, module)
    error = gradient_error(case.module, plain.module)
    peak = peak_of(case, module)
    times = timed(lambda: step(case, module), lambda: step(plain, plain.module), task["spend_s"])
    return {"peak": peak, "plain_peak": plain_peak, **times, "gradient_error": error, **facts}


def prepared(case: Case, task: Row, plain_peak: int, step: Callable[[Any], None]) -> tuple[Any, Row]:
    """The module of a method after its first step, and the fields that the method adds to the row."""
    module: Any = case.module
    facts: Row = {}
    if task["method"] == "checkmate":
        module, facts = checkmate_module(case, task, plain_peak, step)
    elif task["method"].startswith("torch"):
        module = torch_module(module, task["share"], decomposed=task["method"].endswith("decomposed"))
        step(module)
    else:
        step(module)
    return module, facts


def gradient_error(module: Any, plain: Any) -> float:
    """|g − g'| / |g'| over all parameters together."""
    pairs = list(zip(module.parameters(), plain.parameters(), strict=True))
    wrong = sum(float((p.grad.double() - q.grad.double()).square().sum()) for p, q in pairs)
    return math.sqrt(wrong / sum(float(q.grad.double().square().sum()) for _, q in pairs))


def checkmate_module(case: Case, task: Row, plain_peak: int, step: Callable[[Any], None]) -> tuple[Any, Row]:
    """Compile within the budget, or within the least one known to work."""
    loss_bytes = 0
    if case.targets is not None:  # else the module computes its own loss
        # These losses keep nothing else to the end; mean squared error returns its scalar in a large storage.
        loss = case.loss(case.module(*case.inputs))
        loss_bytes = case.targets.nbytes + loss.untyped_storage().nbytes()
        del loss
    compile = partial(
        checkmate_torch.compile, case.module, time_limit=task["time_limit"], loss_bytes=loss_bytes
    )
    start = time.perf_counter()
    compiled = compile(max(int(task["share"] * plain_peak), 2**10))
    try:
        step(compiled)
    except checkmate.InfeasibleBudgetError as error:
        if task["share"] != LEAST or error.minimum is None:
            raise
        compiled = compile(error.minimum)
        step(compiled)
    planned = time.perf_counter() - start  # with the first step, which plans
    return compiled, facts_of(compiled.plans[0].solution) | {"plan_s": planned}


def facts_of(solution: checkmate.Solution) -> Row:
    """The fields of a row that come from a plan."""
    return {
        "budget": solution.problem.budget,
        "expected": solution.peak,
        "overhead": solution.overhead,
        "gap": solution.gap,
        "ops": solution.problem.graph.n_ops,
        "solver_s": solution.seconds,
        "origin": dict(solution.origin),
    }


def torch_module(module: Any, setting: float | None, *, decomposed: bool) -> Any:
    """PyTorch's own partitioner at a memory budget, its graphs as boxed generated code."""

    def boxed(graph: Any, _inputs: Any) -> Any:
        graph.graph.set_codegen(_BoxedCodeGen())
        graph.recompile()

        def call(args: list[Any]) -> Any:
            return graph.forward(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    torch._functorch.config.activation_memory_budget = 1.0 if setting is None else setting
    keywords: Row = {"decompositions": select_decomp_table} if decomposed else {}
    backend = aot_autograd(
        fw_compiler=boxed, bw_compiler=boxed, partition_fn=min_cut_rematerialization_partition, **keywords
    )
    return torch.compile(module, backend=backend, fullgraph=True)


if __name__ == "__main__":
    answer(measure)

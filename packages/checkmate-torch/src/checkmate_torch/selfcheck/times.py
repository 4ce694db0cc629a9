"""Times: a step of plain PyTorch and of other ways to save memory, and ours within the peak of each."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from checkmate import InfeasibleBudgetError
from checkmate.units import format_bytes
from checkmate_torch.private import activation_memory_budget
from checkmate_torch.selfcheck.loop import Loop
from checkmate_torch.selfcheck.rows import Answer, Check, Setup
from checkmate_torch.selfcheck.zoo import NETWORKS, Network, checkpoint_blocks

__all__ = ["checks"]

_NETWORKS = ("gpt", "cnn", "gpt-bfloat16", "mlp")
_SPENT_S = 2.0
_LEAST_STEPS = 5
_EAGER_KERNELS = "aot_eager_decomp_partition"
"""PyTorch's own partition of a traced step, without a compiler."""


@dataclass(frozen=True, slots=True)
class _Other:
    """Another way to train.

    Attributes:
        name: for reports.
        apply: changes a loop before its first step.
        around: the context of all its steps.
        lowering: of our plan within its peak.
    """

    name: str
    apply: Callable[[Loop], None]
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    lowering: str = "eager"


def _compiled(backend: str) -> Callable[[Loop], None]:
    return lambda loop: loop.model.compile(backend=backend)


_OTHERS = (
    _Other("checkpoint per block", lambda loop: checkpoint_blocks(loop.model)),
    _Other(
        "activation_memory_budget 0.5, eager kernels",
        _compiled(_EAGER_KERNELS),
        partial(activation_memory_budget, 0.5),
    ),
    _Other("torch.compile", _compiled("inductor"), lowering="inductor"),
    _Other(
        "torch.compile, activation_memory_budget 0.5",
        _compiled("inductor"),
        partial(activation_memory_budget, 0.5),
        lowering="inductor",
    ),
)


def checks(setup: Setup) -> Iterator[Check]:
    """For each network: plain PyTorch, then each other way and ours within its peak."""
    plain: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for other in _OTHERS:
        for network in (one for one in NETWORKS if one.name in _NETWORKS):
            if other is _OTHERS[0]:
                yield Check(f"{network.name}, plain", partial(_plain, network, setup, plain))
            name = f"{network.name}, {other.name}"
            yield Check(name, partial(_other, network, setup, other, plain, peaks, name))
            yield Check(f"{name}: ours", partial(_ours, network, setup, other, plain, peaks, name))


def _plain(network: Network, setup: Setup, plain: dict[str, float]) -> Answer:
    seconds, peak = _timed(Loop(network, setup))
    plain[network.name] = seconds
    return _answer(seconds, peak, seconds)


def _other(
    network: Network, setup: Setup, other: _Other, plain: dict[str, float], peaks: dict[str, int], name: str
) -> Answer:
    if other.lowering == "inductor" and (lacking := _lacking(setup)):
        return Answer(passed=None, verdict="not possible", text=lacking)
    loop = Loop(network, setup)
    other.apply(loop)
    with other.around():
        seconds, peak = _timed(loop)
    peaks[name] = peak
    return _answer(seconds, peak, plain.get(network.name))


def _ours(
    network: Network, setup: Setup, other: _Other, plain: dict[str, float], peaks: dict[str, int], name: str
) -> Answer:
    if name not in peaks:
        return Answer(passed=None, verdict="not possible", text="there is no peak to keep to")
    budget = peaks[name]
    loop = Loop(network, setup)
    loop.plan("enable", budget, time_limit=10.0, lowering=other.lowering)
    try:
        seconds, peak = _timed(loop)
    except InfeasibleBudgetError as error:
        text = f"{format_bytes(budget)} are not enough for the ops of this schedule"
        return Answer(passed=None, verdict="infeasible", text=text, facts={"least": error.minimum})
    predicted = loop.last_plan.solution.overhead
    return _answer(seconds, peak, plain.get(network.name), budget=budget, overhead=predicted)


def _timed(loop: Loop) -> tuple[float, int]:
    """Median seconds of a step after a warm-up, and the peak of forward and backward pass."""
    peak = loop.train().peak
    seconds: list[float] = []
    end = time.perf_counter() + _SPENT_S
    while len(seconds) < _LEAST_STEPS or time.perf_counter() < end:
        _wait(loop.setup)
        start = time.perf_counter()
        loop.step()
        _wait(loop.setup)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), peak


def _wait(setup: Setup) -> None:
    if setup.device.type == "cuda":
        torch.cuda.synchronize(setup.device)


def _answer(
    seconds: float,
    peak: int,
    plain: float | None,
    *,
    budget: int | None = None,
    overhead: float | None = None,
) -> Answer:
    facts = {"step_s": seconds, "peak": peak, "budget": budget, "overhead": overhead, "plain_step_s": plain}
    said = [f"{seconds * 1e3:.1f} ms", f"{format_bytes(peak)}"]
    if plain is not None and plain != seconds:
        said.append(f"{seconds / plain - 1:+.0%} over plain")
    passed = budget is None or peak <= budget
    verdict = "measured" if budget is None else "within" if passed else "OVER"
    return Answer(passed=passed, verdict=verdict, text=", ".join(said), facts=facts)


def _lacking(setup: Setup) -> str:
    """What Inductor needs and this machine lacks; empty if it has all."""
    if setup.device.type == "cuda" and find_spec("triton") is None:
        return "Triton is not installed"
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++", "gcc", "cc", "clang")):
        return "there is no C++ compiler, which Inductor needs"
    return ""

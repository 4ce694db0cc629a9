"""Times: a step of plain PyTorch and of other ways to save memory, and ours within the peak of each."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch

from checkmate.units import format_bytes
from checkmate_torch.private import activation_memory_budget
from checkmate_torch.selfcheck.answers import Answer, Check, Setup
from checkmate_torch.selfcheck.loop import OVER, Loop, Outcome
from checkmate_torch.selfcheck.networks import NETWORKS, Network, checkpoint_blocks

__all__ = ["checks", "step_seconds"]

_NETWORKS = ("gpt", "cnn", "gpt-bfloat16", "mlp")
_SPENT_S = 2.0
_SOLVE_S = 10.0
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


def _compiled(loop: Loop, backend: str) -> None:
    loop.model.compile(backend=backend)


_HALF = partial(activation_memory_budget, 0.5)
_INDUCTOR = partial(_compiled, backend="inductor")
_OTHERS = (
    _Other("checkpoint per block", lambda loop: checkpoint_blocks(loop.model)),
    _Other("activation_memory_budget 0.5, eager kernels", partial(_compiled, backend=_EAGER_KERNELS), _HALF),
    _Other("torch.compile", _INDUCTOR, lowering="inductor"),
    _Other("torch.compile, activation_memory_budget 0.5", _INDUCTOR, _HALF, lowering="inductor"),
)


def checks(setup: Setup) -> Iterator[Check]:
    """For each network: plain PyTorch, then each other way and ours within its peak."""
    compared = [_Comparison(one, setup) for one in NETWORKS if one.name in _NETWORKS]
    for one in compared:
        yield Check(f"{one.network.name}, plain", one.plain)
    for other in _OTHERS:
        for one in compared:
            name = f"{one.network.name}, {other.name}"
            yield Check(name, partial(one.other, other))
            yield Check(f"{name}: ours", partial(one.ours, other))


class _Comparison:
    """The ways to train one network; each answer refers to the earlier ones."""

    def __init__(self, network: Network, setup: Setup) -> None:
        self.network, self.setup = network, setup
        self._plain_s: float | None = None
        self._peaks: dict[str, int] = {}

    def plain(self) -> Answer:
        """Time plain PyTorch."""
        seconds, last = _timed(Loop(self.network, self.setup))
        answer = self._measured(seconds, last)
        self._plain_s = seconds
        return answer

    def other(self, other: _Other) -> Answer:
        """Time another way."""
        if other.lowering == "inductor" and (lacking := _lacking(self.setup)):
            return Answer(passed=None, verdict="not possible", text=lacking)
        loop = Loop(self.network, self.setup)
        other.apply(loop)
        with other.around():
            seconds, last = _timed(loop)
        self._peaks[other.name] = last.peak
        return self._measured(seconds, last)

    def ours(self, other: _Other) -> Answer:
        """Time ours within the peak of another way."""
        budget = self._peaks.get(other.name)
        if budget is None:
            return Answer(passed=None, verdict="not possible", text="there is no peak to keep to")
        loop = Loop(self.network, self.setup)
        loop.plan("enable", budget, time_limit=_SOLVE_S, lowering=other.lowering)
        seconds, last = _timed(loop)
        found = self._measured(seconds, last)
        facts = found.facts | {"budget": budget, "overhead": loop.last_plan.solution.overhead}
        verdict = last.verdict(budget)
        return replace(found, passed=verdict != OVER, verdict=verdict, facts=facts)

    def _measured(self, seconds: float, last: Outcome) -> Answer:
        text = f"{seconds * 1e3:.1f} ms, {format_bytes(last.peak)}"
        if self._plain_s is not None:
            text += f", {seconds / self._plain_s - 1:+.0%} over plain"
        facts = {"step_s": seconds, "plain_step_s": self._plain_s, "peak": last.peak}
        return Answer(passed=True, verdict="measured", text=text, facts=facts)


def _timed(loop: Loop) -> tuple[float, Outcome]:
    """Median seconds of a step after a warm-up, and the last step of that."""
    last = loop.train()
    return step_seconds(loop, _SPENT_S), last


def step_seconds(loop: Loop, spent_s: float) -> float:
    """Median seconds of a step, of at least five steps.

    Args:
        loop: has run its first steps already.
        spent_s: seconds for all steps.
    """
    seconds: list[float] = []
    end = time.perf_counter() + spent_s
    while len(seconds) < _LEAST_STEPS or time.perf_counter() < end:
        _wait(loop.setup)
        start = time.perf_counter()
        loop.step()
        _wait(loop.setup)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _wait(setup: Setup) -> None:
    if setup.device.type == "cuda":
        torch.cuda.synchronize(setup.device)


def _lacking(setup: Setup) -> str:
    """What Inductor needs and this machine lacks; empty if it has all."""
    if setup.device.type == "cuda" and find_spec("triton") is None:
        return "Triton is not installed"
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++", "gcc", "cc", "clang")):
        return "there is no C++ compiler, which Inductor needs"
    return ""

"""Tools: the meter, the timing of ops, the budget ``"auto"``, other streams and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from checkmate import UnsupportedModelError
from checkmate.units import format_bytes
from checkmate_torch.costs.meter import memory_meter, resident_bytes
from checkmate_torch.costs.profile import profile_op
from checkmate_torch.ops.device import obtainable_bytes
from checkmate_torch.selfcheck.answers import Answer, Check, Setup, finite
from checkmate_torch.selfcheck.loop import OVER, Loop, difference, setup_on
from checkmate_torch.selfcheck.networks import NETWORKS

__all__ = ["checks"]

_FLOATS = 2**22
_SAME = 1e-6
"""Largest relative difference of results when another stream chooses other kernels."""


def checks(setup: Setup) -> Iterator[Check]:
    """One check for each tool; what needs a GPU says so on a CPU."""
    yield Check("memory_meter counts a known block of code", partial(_meter, setup))
    yield Check("an op's workspace and time are measured", partial(_op, setup))
    yield Check('budget="auto"', partial(_auto, setup))
    yield Check("a planned step on a side stream", partial(_on_gpu, _stream, setup))
    yield Check("a planned step in a CUDA graph is refused", partial(_on_gpu, _graph, setup))


def _on_gpu(run: Callable[[Setup], Answer], setup: Setup) -> Answer:
    return run(setup) if setup.large else Answer(passed=None, verdict="needs a GPU")


def _loop(setup: Setup) -> Loop:
    return Loop(NETWORKS[0], setup)


def _planned(setup: Setup) -> Loop:
    loop = _loop(setup)
    loop.plan("enable", "60%", cost_model="flops", time_limit=2.0)
    return loop


def _said(passed: bool, text: str, **facts: object) -> Answer:
    return Answer(passed=passed, verdict="right" if passed else "WRONG", text=text, facts=facts)


def _meter(setup: Setup) -> Answer:
    x = torch.zeros(_FLOATS, device=setup.device)
    with memory_meter(x) as meter:
        y = x.neg()
        z = y.neg()
        del y
    more, left = (meter.peak - meter.base) / x.nbytes, (int(meter.bytes[-1]) - meter.base) / z.nbytes
    return _said((more, left) == (2, 1), f"peak +{more:g} tensors, left +{left:g}", peak=more, left=left)


def _op(setup: Setup) -> Answer:
    x = torch.zeros(_FLOATS, device=setup.device)
    found = profile_op(lambda: x.neg().neg().neg(), setup.device)
    text = f"{format_bytes(found.workspace)} besides the result, {found.seconds * 1e3:.3f} ms"
    return _said(found.workspace == x.nbytes and found.seconds > 0, text, seconds=found.seconds)


def _auto(setup: Setup) -> Answer:
    loop = _loop(setup)
    free = obtainable_bytes(setup.device)
    held = resident_bytes(loop.model, loop.inputs)
    loop.plan("enable", "auto", cost_model="flops")
    peak = loop.train().peak
    budget = loop.last_plan.solution.problem.budget
    right = peak <= budget and 0.7 * free <= budget <= 1.05 * free + held  # other processes allocate, too
    text = f"{format_bytes(budget)}, {format_bytes(free)} were obtainable"
    return _said(right, text, budget=budget, obtainable=free, peak=peak)


def _stream(setup: Setup) -> Answer:
    expected = _loop(setup).train()
    stream = torch.cuda.Stream(setup.device)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        loop = _planned(setup_on(setup.device))  # libraries keep more for each stream
        found = loop.train()
    torch.cuda.synchronize()
    apart, name = difference(found, expected)
    bound = loop.last_plan.solution.problem.budget
    text = f"{apart:.1e} {name}, {format_bytes(found.peak)} of {format_bytes(bound)}"
    facts = {"difference": finite(apart), "peak": found.peak, "budget": bound}
    return _said(apart <= _SAME and found.verdict(bound) != OVER, text, **facts)


def _graph(setup: Setup) -> Answer:
    loop = _planned(setup)
    loop.step()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            loop.forward_and_backward()
    except UnsupportedModelError as error:
        loss = float(loop.step())
        return _said(loss == loss, str(error).partition(":")[0], loss=loss)
    return _said(False, "no error")

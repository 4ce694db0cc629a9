"""Truth: the measured peak of a step is within its budget, and near the predicted one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec

from checkmate.units import format_bytes
from checkmate_torch.planning.options import Lowering
from checkmate_torch.selfcheck.answers import Answer, Check, Setup
from checkmate_torch.selfcheck.loop import LEAST, OVER, Loop, Outcome
from checkmate_torch.selfcheck.networks import Network, networks

__all__ = ["checks"]

_ROUNDS: tuple[tuple[str, float | str, Lowering], ...] = (
    ("enable", 0.7, "eager"),
    ("compile_step", LEAST, "eager"),
    ("enable", LEAST, "eager"),
    ("compile_step", 0.7, "eager"),
    ("enable", 0.7, "inductor"),
    ("enable", 0.5, "eager"),
    ("compile_step", 0.5, "eager"),
)
_FUSED = ("mlp", "cnn", "gpt", "gpt-bfloat16")
"""The networks that are checked once more with ops fused by Inductor."""


def checks(setup: Setup) -> Iterator[Check]:
    """Each network through each entry point within shares of the measured plain peak."""
    plain = {network.name: cache(partial(_plain, network, setup)) for network in networks(setup)}
    for way, share, lowering in _ROUNDS:
        for network in networks(setup):
            if lowering == "inductor" and network.name not in _FUSED:
                continue
            said = share if isinstance(share, str) else f"{share:.0%}"
            fused = ", fused" if lowering == "inductor" else ""
            run = partial(_measure, network, setup, way, share, lowering, plain[network.name])
            yield Check(f"{network.name}, {way}, {said}{fused}", run)


def _plain(network: Network, setup: Setup) -> Outcome:
    return Loop(network, setup).train()


def _measure(
    network: Network,
    setup: Setup,
    way: str,
    share: float | str,
    lowering: Lowering,
    plain: Callable[[], Outcome],
) -> Answer:
    if lowering == "inductor" and (lacking := _lacking(setup)):
        return Answer(passed=None, verdict="not possible", text=lacking)
    before = plain()
    budget = share if isinstance(share, str) else int(share * before.peak)
    loop = Loop(network, setup)
    loop.plan(way, budget, cost_model="flops", time_limit=3.0, lowering=lowering)
    found, plan = loop.train(), loop.last_plan
    bound = plan.solution.problem.budget if isinstance(budget, str) else budget
    predicted = plan.peak
    facts = {
        "budget": bound,
        "predicted": predicted,
        "peak": found.peak,
        "live": found.live,
        "reserved": found.reserved,
        "plain_peak": before.peak,
        "plain_predicted": plan.plain_bytes,
        "plain_reserved": before.reserved,
        "overhead": plan.solution.overhead,
    }
    text = (
        f"{format_bytes(found.peak)} of {format_bytes(bound)}, predicted {predicted / found.peak - 1:+.1%}; "
        f"plain {format_bytes(before.peak)}, predicted {plan.plain_bytes / before.peak - 1:+.1%}"
    )
    if found.reserved:
        text += f"; reserved {format_bytes(found.reserved)}, plain {format_bytes(before.reserved)}"
    verdict = found.verdict(bound)
    return Answer(passed=verdict != OVER, verdict=verdict, text=text, facts=facts)


def _lacking(setup: Setup) -> str:
    """What Inductor needs and this machine lacks; empty if it has all."""
    if setup.device.type == "cuda" and find_spec("triton") is None:
        return "Triton is not installed"
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++", "gcc", "cc", "clang")):
        return "there is no C++ compiler, which Inductor needs"
    return ""

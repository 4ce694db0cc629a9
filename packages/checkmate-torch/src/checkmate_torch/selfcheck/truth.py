"""Truth: the measured peak of a step is within its budget, and near the predicted one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from checkmate.units import format_bytes
from checkmate_torch.selfcheck.answers import Answer, Check, Setup
from checkmate_torch.selfcheck.loop import LEAST, OVER, Loop, Outcome
from checkmate_torch.selfcheck.networks import Network, networks

__all__ = ["checks"]

_ROUNDS: tuple[tuple[str, float | str], ...] = (
    *(("enable", 0.7), ("compile_step", LEAST)),
    *(("enable", LEAST), ("compile_step", 0.7)),
    *(("enable", 0.5), ("compile_step", 0.5)),
)


def checks(setup: Setup) -> Iterator[Check]:
    """Each network through each entry point within shares of the measured plain peak."""
    plain = {network.name: cache(partial(_plain, network, setup)) for network in networks(setup)}
    for way, share in _ROUNDS:
        for network in networks(setup):
            said = share if isinstance(share, str) else f"{share:.0%}"
            run = partial(_measure, network, setup, way, share, plain[network.name])
            yield Check(f"{network.name}, {way}, {said}", run)


def _plain(network: Network, setup: Setup) -> Outcome:
    return Loop(network, setup).train()


def _measure(
    network: Network, setup: Setup, way: str, share: float | str, plain: Callable[[], Outcome]
) -> Answer:
    before = plain()
    budget = share if isinstance(share, str) else int(share * before.peak)
    loop = Loop(network, setup)
    loop.plan(way, budget, cost_model="flops", time_limit=3.0)
    found, plan = loop.train(), loop.last_plan
    bound = plan.solution.problem.budget if isinstance(budget, str) else budget
    predicted = plan.solution.peak or 0
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

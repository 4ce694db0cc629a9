"""The largest batch within a fixed budget: plain, with checkpoints, and ours, each trained for real."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from checkmate import InfeasibleBudgetError
from checkmate.units import format_bytes
from checkmate_torch.selfcheck.answers import Answer, Check, Setup
from checkmate_torch.selfcheck.loop import OVER, Loop
from checkmate_torch.selfcheck.networks import NETWORKS, Network, checkpoint_blocks
from checkmate_torch.tools.batches import largest, max_batch_size

__all__ = ["checks"]

_NETWORKS = ("gpt", "cnn")
_BUDGETS = {False: 64 * 2**20, True: 2**32}
_MOST = 2**14
_STEPS = 10
_SEARCH_S = 60.0


def checks(setup: Setup) -> Iterator[Check]:
    """For each network: plain, with checkpoints, and ours."""
    for network in (one for one in NETWORKS if one.name in _NETWORKS):
        for way in ("plain", "checkpoint per block"):
            yield Check(f"{network.name}, {way}", partial(_by_trying, network, setup, way))
        yield Check(f"{network.name}, ours", partial(_ours, network, setup))


def _budget(setup: Setup) -> int:
    return _BUDGETS[setup.large] + setup.reserve


def _by_trying(network: Network, setup: Setup, way: str) -> Answer:
    """Find the largest batch by training: its measured peak is within the budget."""

    def loop_of(n: int) -> Loop:
        loop = Loop(network, setup, n)
        if way != "plain":
            checkpoint_blocks(loop.model)
        return loop

    def fits(n: int) -> bool:
        return loop_of(n).train(2).verdict(_budget(setup)) != OVER

    n = largest(fits, _MOST, network.batch[setup.large])
    if n == 0:
        return Answer(passed=None, verdict="infeasible", text="no example fits")
    return _trained(loop_of(n), n, setup)


def _ours(network: Network, setup: Setup) -> Answer:
    """Find the largest batch by planning, and train it: whether the plan keeps its promise."""
    start, probe = time.monotonic(), Loop(network, setup, 1)
    found = max_batch_size(
        lambda n: network.examples(setup, n),
        probe.model,
        _budget(setup),
        most=_MOST,
        optimizer=probe.optimizer,
        reserve=setup.reserve,
        cost_model="flops",
        workspaces=True,
        time_limit=_SEARCH_S,
    )
    del probe
    is_late = time.monotonic() - start > _SEARCH_S
    if found.size == 0:
        return Answer(passed=False, verdict="infeasible", text="no example fits")
    loop = Loop(network, setup, found.size)
    loop.plan("enable", _budget(setup), cost_model="flops", time_limit=5.0)
    try:
        answer = _trained(loop, found.size, setup)
    except InfeasibleBudgetError as error:
        return Answer(passed=False, verdict="not kept", text=f"{found.size} examples: {error}")
    if is_late:
        return replace(answer, text=f"{answer.text}; the search ended at its time limit")
    return answer


def _trained(loop: Loop, n: int, setup: Setup) -> Answer:
    outcome = loop.train(_STEPS)
    losses = [float(outcome.values[f"loss {k}"]) for k in range(_STEPS)]
    budget = _budget(setup)
    verdict, falls = outcome.verdict(budget), losses[-1] < losses[0]
    facts = {"examples": n, "budget": budget, "peak": outcome.peak, "losses": losses}
    text = f"{n} examples, {format_bytes(outcome.peak)} of {format_bytes(budget)}"
    if verdict != OVER and not falls:
        verdict, text = "loss does not fall", f"{text}, {losses[0]:.3f} → {losses[-1]:.3f}"
    return Answer(passed=falls and verdict != OVER, verdict=verdict, text=text, facts=facts)

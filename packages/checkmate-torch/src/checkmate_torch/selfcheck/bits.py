"""Check bits: three planned steps give the losses, gradients, states and random numbers of plain PyTorch.

Kernels may be nondeterministic, and the ops of a traced step may round otherwise than eager ones. So results
that differ are compared with two references: a second plain run, and the same model under
``torch.compile(backend="aot_eager")``, which traces it without planning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from checkmate import Budget
from checkmate_torch.selfcheck.answers import Answer, Check, Setup, finite
from checkmate_torch.selfcheck.loop import LEAST, Loop, Outcome, difference
from checkmate_torch.selfcheck.networks import Network, networks

__all__ = ["References", "checks"]

_ROUNDS: tuple[tuple[str, Budget], ...] = (
    *(("enable", "50%"), ("compile_step", LEAST)),
    *(("enable", LEAST), ("compile_step", "50%")),
    *(("enable", "70%"), ("compile_step", "70%")),
    *(("enable", "100%"), ("compile_step", "100%")),
)
_NOISE = 4.0
"""Results may differ from a reference by this factor times the difference between two plain runs."""


def checks(setup: Setup) -> Iterator[Check]:
    """Each network through each entry point within each budget."""
    with _deterministic():
        references = {network.name: References(network, setup) for network in networks(setup)}
        for way, budget in _ROUNDS:
            for network in networks(setup):
                run = partial(_compare, network, setup, references[network.name], way, budget)
                yield Check(f"{network.name}, {way}, {budget}", run)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Deterministic kernels where PyTorch has them."""
    chosen = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(chosen[0])
        torch.backends.cudnn.deterministic = chosen[1]


class References:
    """The outcomes of the same steps without a plan, each computed when it is first asked for.

    Attributes:
        plain: outcome in plain PyTorch.
        noise: difference of a second plain run from the first.
        traced: outcome under ``torch.compile(backend="aot_eager")``.
    """

    def __init__(self, network: Network, setup: Setup) -> None:
        self.plain = cache(lambda: Loop(network, setup).train())
        self.noise = cache(lambda: difference(Loop(network, setup).train(), self.plain())[0])
        self.traced = cache(lambda: _traced(network, setup))


def _traced(network: Network, setup: Setup) -> Outcome:
    loop = Loop(network, setup)
    loop.model.compile(backend="aot_eager")
    return loop.train()


def _compare(network: Network, setup: Setup, references: References, way: str, budget: Budget) -> Answer:
    plain = references.plain()
    loop = Loop(network, setup)
    loop.plan(way, budget, cost_model="flops", workspaces=False, time_limit=2.0)
    ours, solution = loop.train(), loop.last_plan.solution
    far, name = difference(ours, plain)
    facts: dict[str, Any] = {"difference": finite(far), "of": name}
    facts |= {"budget": solution.problem.budget, "overhead": solution.overhead}
    if far == 0:
        return Answer(passed=True, verdict="equal", facts=facts)
    noise, over_traced = references.noise(), difference(ours, references.traced())[0]
    facts |= {"noise": finite(noise), "over_aot_eager": finite(over_traced)}
    text = f"{far:.1e} in {name}, {over_traced:.1e} from aot_eager, a second plain run {noise:.1e}"
    for verdict, apart, allowed in (
        ("as far as plain from itself", far, _NOISE * noise),
        ("equal to aot_eager", over_traced, 0.0),
        ("as far from aot_eager as plain from itself", over_traced, _NOISE * noise),
    ):
        if apart <= allowed:
            return Answer(passed=True, verdict=verdict, text=text, facts=facts)
    return Answer(passed=False, verdict="DIFFERENT", text=text, facts=facts)

"""The largest batch that a budget allows: max n such that a step over n examples fits, at a bearable cost.

A step over more examples needs no less memory, so doubling and then halving the interval finds n. Every try
is a plan; nothing is run but the ops that are timed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

from torch import nn

from checkmate import Budget, BudgetError, Solution
from checkmate.framework import AUTO
from checkmate.units import format_bytes, parse_bytes
from checkmate_torch.ahead import Loss, budget_in_bytes, plan
from checkmate_torch.options import ModelSettings
from checkmate_torch.private import fake_mode

__all__ = ["LargestBatch", "max_batch_size"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LargestBatch:
    """What :func:`max_batch_size` found.

    Attributes:
        size: examples in the largest batch that fits; 0 if not even one does.
        solution: the plan for it; for size 0 that of one example, which is over the budget or too expensive.
        tried: for each size that was planned, whether it fits.
    """

    size: int
    solution: Solution
    tried: dict[int, bool]

    def __int__(self) -> int:
        """The size."""
        return self.size


def max_batch_size(
    make_inputs: Callable[[int], object],
    model: nn.Module,
    budget: Budget,
    max_overhead: float | None = None,
    *,
    most: int = 2**20,
    loss: Loss | None = None,
    **settings: Unpack[ModelSettings],
) -> LargestBatch:
    """The most examples that a training step can take within a budget, by planning steps, not running them.

    Args:
        make_inputs: makes the inputs of ``model`` for a number of examples, as :func:`trace` takes them. It
            is called under fake tensors, so that it allocates nothing.
        model: as in :func:`trace`.
        budget: bytes, a size, or ``"auto"``; a share is of another peak for each batch, and refused.
        max_overhead: the most extra cost that recomputation may have, as a share: 0.3 is 30 %. None = any.
        most: where to stop.
        loss: as in :func:`trace`; must take the output for any number of examples.
        **settings: as in :func:`plan`; ``time_limit`` holds for each of the plans, about 2 log₂ n. With a
            roofline as cost model the search is quicker: new shapes need no timing.

    Raises:
        BudgetError: if the budget can't be read, or is a share.
        ValueError: if ``max_overhead`` is negative or ``most`` is no positive number.
        UnsupportedModelError, CostError: as :func:`trace`.

    >>> import torch
    >>> layer = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    >>> found = max_batch_size(
    ...     lambda n: torch.zeros(n, 256), layer, "4MiB", cost_model="flops", solver="keep-all"
    ... )
    >>> 100 < found.size < 2000, found.solution.peak <= 4 * 2**20
    (True, True)
    """
    if max_overhead is not None and not max_overhead >= 0:
        raise ValueError(f"max_overhead is {max_overhead!r}, must be a share ≥ 0, as 0.3")
    if most < 1:
        raise ValueError(f"most is {most!r}, must be a number of examples ≥ 1")
    limit = _absolute(budget, model)
    plans: dict[int, Solution] = {}

    def fits(n: int) -> bool:
        """Plan a step over n examples."""
        with fake_mode():
            inputs = make_inputs(n)
        plans[n] = plan(model, inputs, limit, loss=loss, throw=False, **settings)
        _log.info("%d examples: %s", n, repr(plans[n]))  # a handler may keep the record, which holds no plan
        return _is_good(plans[n], max_overhead)

    size = largest(fits, most)
    tried = {n: _is_good(solution, max_overhead) for n, solution in plans.items()}
    return LargestBatch(size=size, solution=plans[size or 1], tried=tried)


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n in 1 … ``most`` that fits, if all below one that fits do; 0 if there is none.

    >>> largest(lambda n: n <= 37, 1000), largest(lambda n: True, 100), largest(lambda n: False, 100)
    (37, 100, 0)
    """
    good, bad = 0, most + 1
    while bad - good > 1:
        n = min(max(2 * good, 1), most) if bad > most else (good + bad) // 2
        good, bad = (n, bad) if fits(n) else (good, n)
    return good


def _is_good(solution: Solution, max_overhead: float | None) -> bool:
    return solution.timeline is not None and (max_overhead is None or solution.overhead <= max_overhead)


def _absolute(budget: Budget, model: nn.Module) -> int:
    """The budget in bytes, read once."""
    if budget == AUTO:
        return int(budget_in_bytes(budget, model))
    if isinstance(budget, float) or (isinstance(budget, str) and "%" in budget):
        raise BudgetError(
            f"budget {budget!r} is a share of the plain step's peak, which is another one for each batch: "
            f"write bytes, as {format_bytes(2**33)!r}, or 'auto'"
        )
    return parse_bytes(budget)

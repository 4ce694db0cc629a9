"""The largest batch within a budget: the greatest n for which a training step over n examples can be planned.

A step over more examples never needs less memory, so doubling and bisection find n: first with counted costs,
because timing the ops of each new shape would take most of the search, then with plans as the caller wants
them. Where bytes are linear in n, two sizes are traced, as they are and in pieces, and all others computed
from them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import nn

from checkmate import Budget, BudgetError, DFGraph, PlanError, Progress, Solution, floor, keep_all_peak
from checkmate.framework import decide
from checkmate.heuristics import FirstFit
from checkmate.units import format_bytes
from checkmate_torch.api.trace import allocated_for, options_for, plan, trace
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.planning.decide import budget_bytes
from checkmate_torch.planning.dividing import lowest_in_pieces
from checkmate_torch.planning.options import ModelSettings, Options, Split
from checkmate_torch.private import fake_mode

__all__ = ["LargestBatch", "largest", "max_batch_size"]

_TIME_S = 300.0
_PLAN_S = (1.0, 10.0)
"""The least and the most seconds for the solver of a plan with the caller's settings."""
_TRIAL_S, _TRIAL_OP_S = 2.0, 0.01
"""The most seconds for solving one size: in all, and for each op of the step; the smaller limit holds."""
_SAMPLES = (16, 32)
"""The sizes that are traced first. One example is often a special case; few can't be cut into many pieces."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LargestBatch:
    """What :func:`max_batch_size` found.

    Attributes:
        size: examples in the largest batch that fits; 0 if not even one does.
        solution: the plan for ``size`` examples; for size 0 the plan for one, which exceeds a limit.
        tried: for each size that was tried, whether it fits.
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
    device: str | torch.device | None = None,
    **settings: Unpack[ModelSettings],
) -> LargestBatch:
    """The most examples that a training step can take within a budget, by planning steps, not running them.

    Args:
        make_inputs: makes the inputs of ``model`` for a number of examples, as :func:`trace` takes them. It
            is called under fake tensors, so that it allocates nothing.
        model: as in :func:`trace`.
        budget: bytes, a size, or ``"auto"``. A share is refused: the plain peak differs for each batch size.
        max_overhead: the most extra cost that recomputation may have, as a share: 0.3 is 30 %. None = any.
        most: the largest size to try.
        loss: as in :func:`trace`; must take the output for any number of examples.
        device: the device to plan for, as in :func:`trace`.
        **settings: as in :func:`plan`. But ``time_limit`` is in seconds for the whole search, default 300:
            afterwards no larger size is tried, and a warning is logged.

    Raises:
        BudgetError: if the budget can't be read, or is a share.
        ValueError: if ``max_overhead`` is negative, or ``most`` is less than 1.
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
    time_limit = settings.pop("time_limit", _TIME_S)
    options = options_for(Target.parse(device), budget=budget, **settings)
    if options.is_share:
        raise BudgetError(
            f"budget {budget!r} is a share of the plain step's peak, which is another one for each batch: "
            f"write bytes, as {format_bytes(2**33)!r}, or 'auto'"
        )
    options = replace(options, budget=budget_bytes(options, allocated_for(model, ()), 0))

    def inputs(n: int) -> object:
        with fake_mode():
            return make_inputs(n)

    def traced(n: int, split: Split) -> tuple[list[DFGraph], Split]:
        quiet = {"cost_model": "flops", "workspaces": False, "progress": False, "on_progress": None}
        asked: dict[str, Any] = {name: x for name, x in settings.items() if name != "solver"} | quiet
        step = trace(model, inputs(n), loss=loss, device=device, **{**asked, "split": split})
        divided = step.priced
        with for_target(Target.parse(device)), suppress(PlanError):  # pieces of another size need not exist
            divided = lowest_in_pieces(step.kind, step.priced)
        if divided.divided is None:
            return [step.graph], False
        counts = {division.region.name: len(division.parts) for division in divided.divided.divisions}
        return [step.graph, divided.graph], counts

    def planned(n: int, seconds: float) -> Solution:
        asked: dict[str, Any] = {"workspaces": None, **settings, "throw": False, "time_limit": seconds}
        found: Solution = plan(model, inputs(n), options.budget, loss=loss, device=device, **asked)
        return found

    with options.planning("largest batch: tracing"):
        allowed = math.inf if max_overhead is None else max_overhead
        return _Search(traced, planned, options, allowed, time_limit).found(most)


def largest(fits: Callable[[int], bool], most: int, start: int) -> int:
    """The largest n in 1 … ``most`` that fits, if all sizes below one that fits do; 0 if none does.

    Args:
        fits: tells whether a size fits; is called once for each size.
        most: the largest size to try.
        start: the first size to try. The next ones are 1, 3, 7, … away from it, until one size fits and
            another does not; then the interval between them is halved.

    >>> [largest(lambda n: n <= 37, 1000, start) for start in (1, 37, 38, 5000)]
    [37, 37, 37, 37]
    """
    low, high, n, step = 0, most + 1, start, 1
    while high - low > 1:
        n = min(max(n, low + 1), high - 1)
        is_good = fits(n)
        low, high = (n, high) if is_good else (low, n)
        n = (low + high) // 2 if low > 0 and high <= most else n + step if is_good else n - step
        step *= 2
    return low


class _Search:
    """The state of a search.

    Attributes:
        plans: the plan of each size that was planned.
        tried: for each of these sizes, whether it fits.
    """

    def __init__(
        self,
        traced: Callable[[int, Split], tuple[Sequence[DFGraph], Split]],
        planned: Callable[[int, float], Solution],
        options: Options,
        max_overhead: float,
        time_limit: float,
    ) -> None:
        """Keep two functions.

        Args:
            traced: (size, setting ``split``) ↦ graphs with counted costs, whole and in pieces; the pieces.
            planned: (size, seconds for it) ↦ plan.
            options: how to plan.
            max_overhead: the most extra cost.
            time_limit: seconds for the search.
        """
        self._trace, self._plan = traced, planned
        self.options, self.time_limit, self.started = options, time_limit, time.monotonic()
        self.budget, self.max_overhead = int(options.budget), max_overhead
        self.plans: dict[int, Solution] = {}
        self.tried: dict[int, bool] = {}

    def found(self, most: int) -> LargestBatch:
        """The largest of 1 … ``most`` that fits."""
        guess = max(self._guess(most), 1)
        size = largest(lambda n: not self.is_late and self._fits(n), most, guess)
        if self.is_late:
            if size == 0:
                size = next((n for n in (guess, 1) if self._fits(n)), 0)
            _log.warning(
                "the time limit of %g s ended the search: more than %d may fit", self.time_limit, size
            )
        self._fits(size or 1)
        return LargestBatch(size=size, solution=self.plans[size or 1], tried=self.tried)

    @property
    def is_late(self) -> bool:
        """Whether the time limit is over."""
        return time.monotonic() - self.started > self.time_limit

    def _guess(self, most: int) -> int:
        """The answer by counted costs; only two sizes are traced if all bytes are linear in the size."""
        a, b = _SAMPLES
        if most < b or self.is_late:
            return 1
        two, pieces = self._traced(b)
        one, _ = self._traced(a, pieces)
        alike = [pair for pair in zip(one, two, strict=False) if _have_same_ops(*pair)]

        def fits(n: int) -> bool:
            share = (n - a) / (b - a)
            graphs = (_on_line(*pair, share) for pair in alike) if alike else self._traced(n)[0]
            return any(not self.is_late and self._is_solved(graph) for graph in graphs)

        return largest(fits, most, b)

    def _traced(self, n: int, split: Split | None = None) -> tuple[Sequence[DFGraph], Split]:
        self._report(f"tracing a step over {n} examples")
        return self._trace(n, self.options.split if split is None else split)

    def _is_solved(self, graph: DFGraph) -> bool:
        """Whether a schedule within the budget and the overhead is found within a few seconds."""
        if keep_all_peak(graph) <= self.budget:
            return True
        if floor(graph).size > self.budget:
            return False
        seconds = min(_TRIAL_S, self.time_limit / 10, _TRIAL_OP_S * graph.n_ops)
        asked = replace(self.options, cache=False, time_limit=seconds, progress=False, on_progress=None)
        tries = [asked] if asked.solver != "auto" else [replace(asked, solver=FirstFit()), asked]
        solutions = (decide(graph, self.budget, each, fixed_order=True, throw=False) for each in tries)
        return any(map(self._is_good, solutions))

    def _fits(self, n: int) -> bool:
        """Whether the plan with the caller's settings is within the budget and the overhead."""
        if n not in self.plans:
            self._report(f"planning for {n} examples")
            self.plans[n] = self._plan(n, sorted([*_PLAN_S, self.time_limit / 2])[1])
            self.tried[n] = self._is_good(self.plans[n])
            text = repr(self.plans[n])  # handlers may keep the record: it must not hold the plan
            _log.info("%d examples: %s", n, text)
            self._report(f"{n} examples {'fit' if self.tried[n] else 'do not fit'}")
        return self.tried[n]

    def _is_good(self, solution: Solution) -> bool:
        return solution.timeline is not None and solution.overhead <= self.max_overhead

    def _report(self, step: str) -> None:
        _log.debug("%s", step)
        if (listener := self.options.listener("largest batch")) is not None:
            listener(Progress(None, 0.0, time.monotonic() - self.started, step))


def _have_same_ops(graph: DFGraph, other: DFGraph) -> bool:
    """Whether the ops of two graphs read and make the same tensors."""
    one, two = ((each.n_tensors, [(op.inputs, op.outputs) for op in each.ops]) for each in (graph, other))
    return one == two


def _on_line(one: DFGraph, two: DFGraph, share: float) -> DFGraph:
    """A graph with the ops of both: bytes and costs are one + share · (two − one), at least 0.

    >>> one, two = (DFGraph.from_nodes(cost=[k], size=[8 + 4 * k], deps=[[]]) for k in (1, 2))
    >>> _on_line(one, two, 4.0).tensors[0].size
    28
    """

    def on_line(x: float, y: float) -> float:
        return max(x + share * (y - x), 0.0)

    tensors = tuple(
        replace(t, size=round(on_line(t.size, u.size))) for t, u in zip(one.tensors, two.tensors, strict=True)
    )
    ops = tuple(
        replace(a, cost=on_line(a.cost, b.cost), workspace=round(on_line(a.workspace, b.workspace)))
        for a, b in zip(one.ops, two.ops, strict=True)
    )
    fixed = round(on_line(one.fixed_size, two.fixed_size))
    return replace(one, tensors=tensors, ops=ops, fixed_size=fixed)

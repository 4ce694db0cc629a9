"""The largest batch that a budget allows: max n such that a step over n examples fits, at a bearable cost.

A step over more examples needs no less memory. Sizes are tried with counted costs: tracing and counting take
little time, timing the ops of each new shape would take most of it. A few traced sizes tell what the others
hold (:mod:`checkmate_torch.tools.interpolation`). Only the answer is planned with the caller's settings, and
a size that fails there corrects the costs and workspaces with which smaller ones are tried.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import nn

from checkmate import Budget, BudgetError, DFGraph, Progress, Solution, floor, keep_all_peak
from checkmate.framework import AUTO, decide
from checkmate.heuristics import FirstFit
from checkmate.units import format_bytes, parse_bytes
from checkmate_torch.api.trace import budget_in_bytes, options_for, plan, trace
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.ops.device import Target
from checkmate_torch.planning.options import ModelSettings, Options
from checkmate_torch.private import fake_mode
from checkmate_torch.tools.interpolation import alike, interpolated, priced_like

__all__ = ["LargestBatch", "max_batch_size"]

_TIME_S = 300.0
_PLAN_S = (1.0, 10.0)
"""The least and the most seconds for the solver of a plan with the caller's settings."""
_TRIAL_S, _TRIAL_OP_S = 2.0, 0.01
"""The most seconds for the solver of a size that is tried: in all, and for each op of the step."""
_FIRST = (4, 8)
"""The sizes that are traced first; models often treat one example as a special case."""
_REFINED = 8
"""The most sizes that are traced to make guesses better."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LargestBatch:
    """What :func:`max_batch_size` found.

    Attributes:
        size: examples in the largest batch that fits; 0 if not even one does.
        solution: the plan for it; for size 0 that of one example, which is over the budget or too expensive.
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
        budget: bytes, a size, or ``"auto"``; a share is of another peak for each batch, and refused.
        max_overhead: the most extra cost that recomputation may have, as a share: 0.3 is 30 %. None = any.
        most: where to stop.
        loss: as in :func:`trace`; must take the output for any number of examples.
        device: the device to plan for, as in :func:`trace`.
        **settings: as in :func:`plan`, for the plan of the size that is found; other sizes are tried with
            counted costs. But ``time_limit`` is in seconds for the whole search, default 300: afterwards no
            larger size is tried, the largest one that is known to fit is planned, and a warning is logged.

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
    time_limit = settings.pop("time_limit", _TIME_S)
    options = options_for(Target.parse(device), budget=budget, **settings)
    options = replace(options, budget=_absolute(options.budget, model))
    step = _Step(
        make_inputs=make_inputs,
        model=model,
        loss=loss,
        settings={"workspaces": None, **settings, "device": device},
        options=options,
    )
    with options.planning("largest batch: tracing"):
        return _Search(step, max_overhead, time_limit).found(most)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """A step over any number of examples.

    Attributes:
        make_inputs: as in :func:`max_batch_size`, and likewise below.
        model: the model.
        loss: from its output to a scalar.
        settings: of the final plan.
        options: the same, read, with the budget in bytes.
    """

    make_inputs: Callable[[int], object]
    model: nn.Module
    loss: Loss | None
    settings: dict[str, Any]
    options: Options

    @property
    def is_counted(self) -> bool:
        """Whether the caller's settings count, too: then plans correct nothing."""
        return self.options.cost_model == "flops" and not self.options.workspaces

    def traced(self, n: int) -> DFGraph:
        """The graph over n examples with counted costs."""
        quiet = {"cost_model": "flops", "workspaces": False, "progress": False, "on_progress": None}
        settings = {name: x for name, x in self.settings.items() if name != "solver"} | quiet
        return trace(self.model, self._inputs(n), loss=self.loss, **settings).graph

    def planned(self, n: int, time_limit: float) -> Solution:
        """The plan over n examples with the caller's settings."""
        settings = self.settings | {"throw": False, "time_limit": time_limit}
        return plan(self.model, self._inputs(n), self.options.budget, loss=self.loss, **settings)

    def _inputs(self, n: int) -> object:
        with fake_mode():
            return self.make_inputs(n)


class _Search:
    """The search for one step.

    Attributes:
        graphs: for each size that was traced, its graph with counted costs.
        fitting: for each of them that was tried since the last plan, whether it fits.
        measured: the last size that was planned, and its graph with the caller's costs.
    """

    def __init__(self, step: _Step, max_overhead: float | None, time_limit: float) -> None:
        self.step, self.max_overhead = step, max_overhead
        self.budget = int(step.options.budget)
        self.time_limit = time_limit
        self.started = time.monotonic()
        self.graphs: dict[int, DFGraph] = {}
        self.fitting: dict[int, bool] = {}
        self.measured: tuple[int, DFGraph] | None = None

    def found(self, most: int) -> LargestBatch:
        """The largest of 1 … ``most`` that fits."""
        plans: dict[int, Solution] = {}
        tried: dict[int, bool] = {}
        low, high = 0, most + 1
        while True:
            estimate = self._boundary(low, high)
            tried |= self.fitting
            if estimate == low and (low or 1 in plans):
                break
            n = estimate or self._fallback(high)
            self._report(f"planning for {n} examples")
            plans[n] = self.step.planned(n, sorted([*_PLAN_S, self.time_limit / 2])[1])
            tried[n] = self._is_good(plans[n])
            text = repr(plans[n])  # handlers may keep the record: it must not hold the plan
            _log.info("%d examples: %s", n, text)
            low, high = (n, high) if tried[n] else (low, n)
            if not self.step.is_counted:
                self.measured, self.fitting = (n, plans[n].problem.graph), {}
            if high == 1 or (low == estimate and self.max_overhead is None):  # measured bytes are never fewer
                break
        if self.is_late:
            _log.warning(
                "the time limit of %g s ended the search: more than %d may fit", self.time_limit, low
            )
        return LargestBatch(size=low, solution=plans[low or 1], tried=tried)

    @property
    def is_late(self) -> bool:
        """Whether the time limit is over."""
        return time.monotonic() - self.started > self.time_limit

    def _boundary(self, low: int, high: int) -> int:
        """The largest size below ``high`` that fits by counted costs; ``low`` if none above it does."""
        first = [n for n in _FIRST if low < n < high] if not self.graphs else []
        for n in first:
            self._traced(n)
        n = self._start(low, high)
        for _ in range(_REFINED):
            n = largest(lambda k: self._fits(self._guess(k)), low, high, n)
            if n == low or n in self.graphs or self.is_late:
                break
            self._traced(n)
        return largest(self._fits_traced, low, high, n)

    def _fallback(self, high: int) -> int:
        """The largest traced size below ``high`` that fits without recomputation; else one example."""
        known = [n for n in self.graphs if n < high and keep_all_peak(self._traced(n)) <= self.budget]
        return max(known, default=1)

    def _start(self, low: int, high: int) -> int:
        """The size whose step without recomputation is about as large as the budget."""
        a, b, *_ = [*sorted(self.graphs, reverse=True), 0, 0]
        if not b:
            return max(low, 1)
        peaks = keep_all_peak(self.graphs[a]), keep_all_peak(self.graphs[b])
        slope = (peaks[0] - peaks[1]) / (a - b)
        return min(high, b + int((self.budget - peaks[1]) / slope)) if slope > 0 else high

    def _traced(self, n: int) -> DFGraph:
        if n not in self.graphs:
            self._report(f"tracing a step over {n} examples")
            self.graphs[n] = self.step.traced(n)
        return self._priced(self.graphs[n], n)

    def _guess(self, n: int) -> DFGraph:
        """The graph over n examples from those of the two nearest sizes, if they are alike; else traced."""
        a, b, *_ = [*sorted(self.graphs, key=lambda k: abs(k - n)), 0, 0]
        if n in self.graphs or not b or not alike(self.graphs[a], self.graphs[b]):
            return self._traced(n)
        return self._priced(interpolated((a, self.graphs[a]), (b, self.graphs[b]), n), n)

    def _priced(self, graph: DFGraph, n: int) -> DFGraph:
        return graph if self.measured is None else priced_like(graph, n, self.measured)

    def _fits_traced(self, n: int) -> bool:
        if self.is_late:
            return False
        if n not in self.fitting:
            self.fitting[n] = self._fits(self._traced(n))
            self._report(f"{n} examples {'fit' if self.fitting[n] else 'do not fit'}")
        return self.fitting[n]

    def _fits(self, graph: DFGraph) -> bool:
        """Whether a schedule within the budget and the overhead is found soon."""
        if keep_all_peak(graph) <= self.budget:
            return True
        if floor(graph).size > self.budget or self.is_late:
            return False
        options = replace(
            self.step.options,
            cache=False,
            time_limit=min(_TRIAL_S, self.time_limit / 10, _TRIAL_OP_S * graph.n_ops),
            on_progress=self._decided_early(graph),
            progress=False,
        )
        if options.solver == "auto":
            quick = decide(
                graph, self.budget, replace(options, solver=FirstFit()), fixed_order=True, throw=False
            )
            if self._is_good(quick):
                return True
        try:
            return self._is_good(decide(graph, self.budget, options, fixed_order=True, throw=False))
        except _Decided as decided:
            return decided.fits

    def _decided_early(self, graph: DFGraph) -> Callable[[Progress], None]:
        """Ends a solve as soon as its schedule is cheap enough, or none can be."""
        most = math.inf if self.max_overhead is None else (1 + self.max_overhead) * graph.ideal_cost

        def listen(report: Progress) -> None:
            if report.incumbent is not None and report.incumbent <= most:
                raise _Decided(True)
            if report.bound > most:
                raise _Decided(False)

        return listen

    def _is_good(self, solution: Solution) -> bool:
        most = self.max_overhead
        return solution.timeline is not None and (most is None or solution.overhead <= most)

    def _report(self, step: str) -> None:
        _log.debug("%s", step)
        if (listener := self.step.options.listener("largest batch")) is not None:
            listener(Progress(None, 0.0, time.monotonic() - self.started, step))


class _Decided(Exception):  # noqa: N818 - it ends a solve that has answered
    """Raised to end a solve once the question is answered."""

    def __init__(self, fits: bool) -> None:
        super().__init__(fits)
        self.fits = fits


def largest(fits: Callable[[int], bool], low: int, high: int, start: int) -> int:
    """The largest n in low … high − 1 that fits, if all below one that fits do; ``low`` itself is not tried.

    Away from ``start`` in doubling steps until a size fits and another does not, then by halving.

    >>> [largest(lambda n: n <= 37, 0, 1000, start) for start in (1, 37, 38, 5000)]
    [37, 37, 37, 37]
    """
    bottom, top, n, step = low, high, start, 1
    while high - low > 1:
        n = min(max(n, low + 1), high - 1)
        is_good = fits(n)
        low, high = (n, high) if is_good else (low, n)
        n = (low + high) // 2 if low > bottom and high < top else n + step if is_good else n - step
        step *= 2
    return low


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

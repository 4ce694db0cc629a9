"""A loop of :data:`zoo.habits.VARYING`, run plainly and within a budget, with each of its steps measured.

All tensors that exist before a step are counted from its start, and all that planning allocates in it, which
runs ops to measure them. Planning is what the processor does beyond the plain run, in all steps together.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import re
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import checkmate_torch
from checkmate_torch.costs import allocations
from checkmate_torch.costs.meter import memory_meter
from checkmate_torch.private import ProfilerEvent, profiler_is_running, start_profiler, stop_profiler
from steps.process import Row, answer
from steps.torch_habit import Arrays, Warned, alive_tensors, as_array, difference, least_named
from steps.varies import FIRST, row_of
from zoo.habits import VARYING
from zoo.habits.habit import Door, of
from zoo.habits.varying import LEAST, STEPS, Varying

__all__ = ["measure"]

_TRIES = 6
_NAMED = re.compile(r"least budget known to work .*?(\d+) bytes")


def measure(task: Row) -> Row:
    """Peaks, new graphs and processor time of each step, the difference of results, warnings.

    Args:
        task: ``habit``.
    """
    gc.freeze()  # the libraries' objects, so that the tensors among the others are soon found
    torch.set_num_threads(1)  # so that processor time is not that of waiting threads
    logging.getLogger("torch._dynamo.convert_frame").setLevel(logging.WARNING)
    habit = VARYING[task["habit"]]
    plain = _Run(habit, lambda model, _=None: model)
    budget = _budget(habit, plain.peaks)
    with Warned() as warned:
        ours = _Run(habit, _door(budget, habit.reserve, cache=True))
    found = difference(ours.results(), plain.results())
    return row_of(budget, plain, ours, difference=found, warned=warned, changes=habit.changes)


def _budget(habit: Varying, plain: list[int]) -> int | str:
    """The budget as it is passed."""
    if isinstance(habit.budget, str):
        return habit.budget
    return int(habit.budget * max(plain)) if habit.budget != LEAST else _least(habit, max(plain))


def _least(habit: Varying, most: int) -> int:
    """The least budget that lower ones name, in an error or in a warning of the first steps."""
    budget = most // 100
    for _ in range(_TRIES):
        with Warned() as warned:
            try:
                _Run(habit, _door(budget, habit.reserve, cache=False), steps=FIRST)
                least = None
            except Exception as failure:
                least = least_named(failure)
                if least is None:
                    raise
        named = [int(found[1]) for text in warned if (found := _NAMED.search(text))]
        least = max([least or 0, *named])
        if least <= budget:
            return budget
        budget = least
    return budget


def _door(budget: int | str, reserve: int, *, cache: bool) -> Door:
    settings: dict[str, Any] = {"reserve": reserve, "cost_model": "flops", "cache": cache}

    def enabled(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
        checkmate_torch.enable(model, budget, optimizer=optimizer, **settings)
        return model

    return enabled


class _Enough(Exception):  # noqa: N818 - no error
    """Ends a loop early."""


class _Run:
    """A run of a loop, measured step by step.

    Attributes:
        peaks: of each step, in bytes.
        new_plans: the number of graphs that Dynamo captured in each step.
        seconds: of the processor, in each step.
    """

    def __init__(self, habit: Varying, door: Door, steps: int = STEPS) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        random.seed(0)
        self.peaks: list[int] = []
        self.new_plans: list[int] = []
        self.seconds: list[float] = []
        self._losses: list[Arrays] = []
        self._state: Arrays = []
        self._steps = steps
        with ExitStack() as self._step:
            self._begin()
            with suppress(_Enough):
                habit.loop(door, self._ended)

    def results(self) -> list[Arrays]:
        """The losses of each step, and the parameters, gradients and buffers after the last."""
        return [*self._losses, self._state]

    def _begin(self) -> None:
        recordings = _Recordings()
        names = ("profiler_is_running", "start_profiler", "stop_profiler")
        self._step.enter_context(
            mock.patch.multiple(allocations, **{name: getattr(recordings, name) for name in names})
        )
        self._meter = self._step.enter_context(memory_meter(alive_tensors(), device="cpu"))
        self._start = _processor_s(), _n_graphs()

    def _ended(self, *models: nn.Module, losses: Iterable[Tensor] = ()) -> None:
        seconds, graphs = _processor_s() - self._start[0], _n_graphs() - self._start[1]
        self._step.close()
        self.seconds.append(seconds)
        self.new_plans.append(graphs)
        self.peaks.append(int(self._meter.peak))
        self._losses.append([as_array(loss) for loss in losses])
        if len(self.peaks) == self._steps:
            self._state = [as_array(x) for x in of(*models)]
            raise _Enough
        self._begin()


class _Recordings:
    """Recordings of allocations, one inside of another, each with the events of those inside of it."""

    def __init__(self) -> None:
        self._open: list[list[ProfilerEvent]] = []

    def profiler_is_running(self) -> bool:
        """Whether a profiler records that was not started here."""
        return not self._open and profiler_is_running()

    def start_profiler(self) -> None:
        """Start a recording; that around it waits."""
        if self._open:
            self._open[-1] += stop_profiler()
        self._open.append([])
        start_profiler()

    def stop_profiler(self) -> list[ProfilerEvent]:
        """End a recording; that around it goes on."""
        events = self._open.pop() + stop_profiler()
        if self._open:
            self._open[-1] += events
            start_profiler()
        return events


def _processor_s() -> float:
    """Seconds of this process and its children."""
    return sum(os.times()[:4])


def _n_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    answer(measure)

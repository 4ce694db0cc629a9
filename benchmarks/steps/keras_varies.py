"""A loop of :mod:`zoo.keras_varies`, run plainly and within a budget, with each call of a step measured.

Plans are made before a call is measured, because TensorFlow has one profiler: what planning allocates, which
runs single ops, is in no peak. For the same reason the first three calls of a step with bytes that are not
counted, which Checkmate measures itself, count no bytes here.
The seconds of planning are what the processor does beyond the plain run, in all steps together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import checkmate.tf2
from steps.process import Row, answer
from steps.varies import row_of
from zoo.keras_varies import VARYING

__all__ = ["measure"]

_MEASURED_BY_CHECKMATE = 3
Model = Any  # Keras has no types
_PLANNED = "planned for %s: %s"
"""The message with which each plan is logged."""


def measure(task: Row) -> Row:
    """Peaks, new plans and processor time of each step, the difference of results, warnings.

    Args:
        task: ``habit``; ``time_limit`` of the solver in seconds.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)
    habit = VARYING[task["habit"]]
    plain = _Run()
    _started(habit.loop, plain)
    budget = habit.budget if isinstance(habit.budget, str) else int(habit.budget * max(plain.peaks))
    ours = _Run(budget, task["time_limit"])
    with _logged() as records:
        ours.records = records
        _started(habit.loop, ours)
    warned = [record.getMessage() for record in records if record.levelno >= logging.WARNING]
    found, said = _difference(ours.results, plain.results), [*dict.fromkeys(warned)]
    return row_of(budget, plain, ours, difference=found, warned=said, changes=habit.changes)


def _started(loop: Callable[[Any], None], run: _Run) -> None:
    keras.utils.set_random_seed(0)
    loop(run)
    run.results.append(np.concatenate([v.numpy().astype("float64").ravel() for v in run.variables]))


class _Run:
    """A run of a loop: the door that measures it.

    Attributes:
        peaks: of each step, in bytes: that of its largest call.
        new_plans: the number that were made in each step.
        seconds: of the processor, in each step.
        results: the losses of each step, then all variables.
        variables: of all that is trained.
        records: of the log.
    """

    def __init__(self, budget: int | str | None = None, time_limit: float = 0.0) -> None:
        self.budget, self.settings = budget, {"time_limit": time_limit, "cache": False}
        self.peaks: list[int] = []
        self.new_plans: list[int] = []
        self.seconds: list[float] = []
        self.results: list[Any] = []
        self.variables: list[Any] = []
        self.records: list[logging.LogRecord] = []
        self._peak, self._before, self._start_s, self._calls = 0, 0, time.process_time(), 0

    def function(self, step: Callable[..., Any], *owners: Any) -> Callable[..., Any]:
        """The step as a function of TensorFlow, planned within the budget if there is one."""
        run = (
            tf.function(step)
            if self.budget is None
            else checkmate.tf2.function(step, budget=self.budget, **self.settings)
        )
        variables = [v for owner in owners for v in (owner if isinstance(owner, list) else owner.variables)]
        self.variables += [v for v in variables if not any(v is known for known in self.variables)]
        ready = (lambda *_: None) if self.budget is None else run.plan
        return lambda *batch: self._measured(run, ready, variables, batch)

    def model(self, model: Model) -> Callable[[Any, Any], Any]:
        """A compiled model as a function that trains it on a batch, enabled if there is a budget."""
        ready: Callable[..., Any] = lambda *_: None  # noqa: E731
        if self.budget is not None:
            known = checkmate.tf2.planned_training(model)
            ready = (known or checkmate.tf2.enable(model, self.budget, **self.settings)).plan
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        self.variables = [*model.variables]
        return lambda *batch: self._measured(model.train_on_batch, ready, variables, batch)

    def ended(self, *losses: Any) -> None:
        """End a step."""
        plans = sum(record.msg == _PLANNED for record in self.records)
        self.seconds.append(time.process_time() - self._start_s)
        self.peaks.append(self._peak)
        self.new_plans.append(plans - self._before)
        self.results.append(np.array([float(loss) for loss in losses]))
        self._peak, self._before, self._start_s = 0, plans, time.process_time()

    def _measured(
        self, run: Callable[..., Any], ready: Callable[..., Any], variables: list[Any], batch: tuple[Any, ...]
    ) -> Any:
        plan, self._calls = ready(*batch), self._calls + 1
        if plan is not None and any(plan.traced.uncounted) and self._calls <= _MEASURED_BY_CHECKMATE:
            return run(*batch)
        tensors = [x for x in batch if isinstance(x, np.ndarray) or tf.is_tensor(x)]
        with checkmate.tf2.memory_meter(variables, tensors) as meter:
            found = run(*batch)
        self._peak = max(self._peak, int(meter.peak))
        return found


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    """The records of Checkmate's log in this block."""
    records: list[logging.LogRecord] = []
    logger, handler = logging.getLogger("checkmate_tf"), logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def _difference(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference of a loss or a variable, relative to the largest in the same place."""
    pairs = [(np.abs(a - b).max(), np.abs(b).max()) for a, b in zip(ours, theirs, strict=True)]
    return float(max(apart / max(size, 1e-30) for apart, size in pairs))


if __name__ == "__main__":
    answer(measure)

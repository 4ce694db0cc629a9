"""The first run of a step whose bytes are not all counted: it is measured, and a warning names its peak."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from checkmate.errors import ProfilerBusyError
from checkmate.units import format_bytes
from checkmate_tf.costs.meter import memory_meter
from checkmate_tf.ops.device import device_of_this_machine
from checkmate_tf.planning.step_plan import StepPlan

__all__ = ["measured_run"]

_log = logging.getLogger(__name__)


def measured_run(
    plan: StepPlan, run: Callable[[Sequence[tf.Tensor]], Any], tensors: Sequence[tf.Tensor]
) -> Any:
    """Run a step under the memory meter, and log a warning with its peak.

    Args:
        plan: of the step; some of its ops hold bytes that are not counted.
        run: runs the step.
        tensors: its arguments.
    """
    names = [op.name for op in plan.traced.uncounted]
    text = f"the bytes of {len(names)} ops depend on data and are not counted, the first is {names[0]!r}"
    measuring = memory_meter(plan.traced.captured.variables, tensors, device=device_of_this_machine())
    with ExitStack() as stack:
        try:
            meter = stack.enter_context(measuring)
        except ProfilerBusyError:
            _log.warning("%s; another profiler is running, so the first step was not measured", text)
            return run(tensors)
        results = run(tensors)
    peak, budget = format_bytes(meter.peak), format_bytes(plan.solution.problem.budget)
    _log.warning(
        "%s: the first step held %s, the budget is %s, other steps may hold more; reserve= makes room",
        *(text, peak, budget),
    )
    return results

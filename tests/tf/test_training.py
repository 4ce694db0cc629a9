"""Any feasible budget gives the same training, bit for bit, and the measured peak is within it.

The bits are those of the same ops, unscheduled, under the same setting of Grappler. Stock ``tf.function``
lets oneDNN fuse a convolution with its bias, which may change the last bit; with one thread, as here, it
often does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate import InfeasibleBudgetError
from checkmate_tf import PlannedFunction
from checkmate_tf.emit import emit
from checkmate_tf.program import Program
from checkmate_tf.tracing import TracedGraph
from zoo.small_keras import Case, efficientnet, resnet, transformer, unet

Arrays = list[np.ndarray[Any, Any]]

STEPS = 3
LEAST, WHOLE = "least", "whole"
"""Budgets; the whole is more than enough."""

CASES: dict[str, Callable[[], Case]] = {
    "resnet": partial(resnet, image=16, stages=(1,)),
    "efficientnet": partial(efficientnet, image=16, blocks=1),
    "unet-dropout": partial(unet, image=16, levels=2, dropout=0.2),
    "transformer": partial(transformer, blocks=1),
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """The results of a training run, and the bytes that a step holds while it runs and after it."""

    losses: list[float]
    state: Arrays
    peak: int
    left: set[int]


def train(case: Case, step: Callable[..., tf.Tensor]) -> Training:
    """A few optimizer steps, and as many whose memory is measured; then the variables are restored."""
    start = [v.numpy() for v in case.variables]
    losses = [float(step(*case.batch)) for _ in range(STEPS)]
    state = [v.numpy() for v in case.variables]
    peaks, left = set[int](), set[int]()
    for _ in range(STEPS):
        with checkmate.tf2.memory_meter(case.variables, case.batch) as meter:
            step(*case.batch)
        peaks.add(meter.peak)
        left.add(int(meter.bytes[-1]))
    for variable, value in zip(case.variables, start, strict=True):
        variable.assign(value)
    return Training(losses=losses, state=state, peak=max(peaks), left=left)


def planned(case: Case, budget: str | int) -> PlannedFunction:
    return checkmate.tf2.function(case.step, budget=budget, time_limit=1)


def distance(ours: Arrays, theirs: Arrays) -> float:
    """|a − b| / |b|, the norms over all arrays."""
    wrong = sum(float(np.square(a - b.astype(np.float64)).sum()) for a, b in zip(ours, theirs, strict=True))
    return float(np.sqrt(wrong / sum(float(np.square(b.astype(np.float64)).sum()) for b in theirs)))


def least_budget(case: Case) -> int:
    """The budget that works, as named in the error for one that is too small."""
    with pytest.raises(InfeasibleBudgetError) as caught:
        planned(case, "1B").plan(*case.batch)
    assert caught.value.minimum is not None
    return caught.value.minimum


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A network, planned without recomputation, and its unscheduled training."""

    case: Case
    whole: PlannedFunction
    training: Training


@pytest.fixture(scope="module", params=CASES)
def reference(request: pytest.FixtureRequest, unscheduled: Callable[[TracedGraph], Program]) -> Reference:
    case = CASES[request.param]()
    whole = planned(case, "1GiB")
    traced = whole.plan(*case.batch).traced
    replay = emit(traced.captured, unscheduled(traced))
    training = train(case, lambda *batch: replay(*batch)[0])
    return Reference(case=case, whole=whole, training=training)


@pytest.mark.parametrize("budget", [WHOLE, LEAST])
def test_same_bits_within_the_budget(reference: Reference, budget: str) -> None:
    case, step = reference.case, reference.whole
    if budget == LEAST:
        step = planned(case, least_budget(case))
    run = train(case, step)
    (plan,) = step.plans
    assert run.losses == reference.training.losses
    assert all(map(np.array_equal, run.state, reference.training.state))
    assert run.peak <= (plan.solution.problem.budget if budget == LEAST else plan.needed)
    assert run.peak == pytest.approx(plan.expected, rel=0.02)
    assert len(run.left) == 1  # no step leaks
    assert (plan.solution.overhead > 0) == (budget != WHOLE)


def test_the_losses_and_the_state_are_close_to_those_of_stock_tensorflow(reference: Reference) -> None:
    stock = train(reference.case, tf.function(reference.case.step))
    assert reference.training.losses == pytest.approx(stock.losses, rel=1e-4)
    # Adam's first step depends on the sign of a gradient, however small.
    assert distance(reference.training.state, stock.state) < 5e-3

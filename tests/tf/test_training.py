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
from checkmate_tf.running.emit import emit
from checkmate_tf.running.program import Program
from checkmate_tf.tracing.step_graph import TracedGraph
from zoo.small_keras import Case, application, densenet, efficientnet, resnet, transformer, unet, vgg

Arrays = list[np.ndarray[Any, Any]]

STEPS = 3
LEAST, WHOLE = "least", "100%"
"""Budgets; the share is of what the planned order needs without recomputation."""

CASES: dict[str, Callable[[], Case]] = {
    "vgg": partial(vgg, image=16, levels=2),
    "resnet": partial(resnet, image=16, stages=(1,)),
    "densenet": partial(densenet, image=16, stages=(2,)),
    "efficientnet": partial(efficientnet, image=16, blocks=1),
    "unet-dropout": partial(unet, image=16, levels=2, dropout=0.2),
    "transformer": partial(transformer, blocks=1),
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """The results of a training run."""

    losses: list[float]
    state: Arrays
    peak: int


def train(case: Case, step: Callable[..., tf.Tensor]) -> Training:
    """A few optimizer steps, and one more, whose memory is measured; then the variables are restored."""
    start = [v.numpy() for v in case.variables]
    losses = [float(step(*case.batch)) for _ in range(STEPS)]
    state = [v.numpy() for v in case.variables]
    with checkmate.tf2.memory_meter(case.variables, case.batch) as meter:
        step(*case.batch)
    for variable, value in zip(case.variables, start, strict=True):
        variable.assign(value)
    return Training(losses=losses, state=state, peak=meter.peak)


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
    whole = planned(case, planned(case, "1GiB").plan(*case.batch).needed)
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
    assert run.peak <= plan.solution.problem.budget
    assert run.peak == pytest.approx(plan.expected, rel=0.02)
    # A product that costs next to no FLOPs may be computed twice.
    assert (plan.solution.overhead > 1e-3) == (budget != WHOLE)


def test_the_losses_and_the_state_are_close_to_those_of_stock_tensorflow(reference: Reference) -> None:
    stock = train(reference.case, tf.function(reference.case.step))
    assert reference.training.losses == pytest.approx(stock.losses, rel=1e-4)
    # Adam's first step depends on the sign of a gradient, however small.
    assert distance(reference.training.state, stock.state) < 5e-3


def test_a_network_of_keras_applications_trains_within_its_budget() -> None:
    case = application("MobileNet", image=32, batch=8, alpha=0.25)
    step = planned(case, "80%")
    run = train(case, step)
    assert run.peak <= step.plans[0].solution.problem.budget
    assert run.peak == pytest.approx(step.plans[0].expected, rel=0.02)
    assert run.losses[-1] < run.losses[0]


def test_steps_leak_nothing() -> None:
    case = CASES["transformer"]()
    step = planned(case, "60%")
    step(*case.batch)
    left = set()
    for _ in range(3):
        with checkmate.tf2.memory_meter(case.variables, case.batch) as meter:
            step(*case.batch)
        left.add(int(meter.bytes[-1]))
    assert len(left) == 1

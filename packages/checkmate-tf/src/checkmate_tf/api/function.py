"""Run a function that computes a training step within a byte budget, planned for each kind of arguments.

f(x) = y  ↦  f̂(x) = y, bit for bit, with peak(f̂) ≤ budget
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import update_wrapper
from itertools import count
from typing import Any, Unpack, overload

import tensorflow as tf

from checkmate import Budget, InfeasibleBudgetError, ProfilerBusyError
from checkmate.framework import AUTO
from checkmate.report import Account, HasPlans
from checkmate.units import format_bytes
from checkmate_tf import private
from checkmate_tf.api.bind import BoundStep, TracedFunction, as_written
from checkmate_tf.capture.arguments import Range, Signature
from checkmate_tf.capture.function_capture import UnsupportedFunctionError
from checkmate_tf.costs.events import other_profiler_runs
from checkmate_tf.costs.meter import memory_meter
from checkmate_tf.ops.device import device_of_this_machine, devices_of
from checkmate_tf.planning.options import Options, Settings
from checkmate_tf.planning.planner import Planner
from checkmate_tf.planning.priced_step import PricedStep
from checkmate_tf.planning.step_plan import StepPlan

__all__ = ["PlannedFunction", "function"]

_MOST_KINDS = 32
"""The most plans kept, one for each kind of arguments; a plan of 600 ops takes 45 MiB of host memory."""
_MANY_CONSTANTS = 5
"""A warning comes with this number of plans that differ only in Python values."""
_MANY_SIZES = 3
"""The number of sizes of a kind of arguments for which one step of open sizes is planned."""
_log = logging.getLogger(__name__)


@overload
def function(
    fn: Callable[..., Any], *, budget: Budget = AUTO, **settings: Unpack[Settings]
) -> PlannedFunction: ...
@overload
def function(
    fn: None = None, *, budget: Budget = AUTO, **settings: Unpack[Settings]
) -> Callable[[Callable[..., Any]], PlannedFunction]: ...
def function(
    fn: Callable[..., Any] | None = None, *, budget: Budget = AUTO, **settings: Unpack[Settings]
) -> PlannedFunction | Callable[[Callable[..., Any]], PlannedFunction]:
    """Run a function that computes losses and gradients, and may apply them, within a byte budget.

    Args:
        fn: a function that ``tf.function`` accepts. Its arguments are tensors, nested in tuples, lists and
            dicts, and Python values, which are constants to it. It may create variables only at its first
            call. Leave it out for a decorator with settings: ``@function(budget="8GiB")``.
        budget: bytes of everything that the step holds at once: variables that it uses, arguments,
            activations, gradients, the workspaces of its ops; a size (``"8GiB"``), a share of the plain
            step's peak (``"60%"``, ``0.6``), or ``"auto"``, the memory that the device has left.
        **settings: :class:`~checkmate_tf.planning.options.Settings`.

    Returns:
        A callable with the same arguments; it plans at the first call with each new kind of arguments.

    Raises:
        BudgetError: if the budget can't be read.
        UnsupportedFunctionError: if ``fn`` is a ``tf.function`` that XLA compiles.
        TypeError: if ``fn`` can't be called, or a setting does not exist or has a wrong type.

    >>> w = tf.Variable(tf.ones([4, 4]))
    >>> @function(budget="100%", cost_model="flops")
    ... def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_sum(tf.nn.relu(x @ w))
    ...     return loss, tape.gradient(loss, w)
    >>> loss, gradient = step(tf.ones([2, 4]))
    >>> float(loss), gradient.shape
    (32.0, TensorShape([4, 4]))
    """
    options = Options.parse(budget=budget, **settings)
    return PlannedFunction(fn, options) if fn is not None else lambda fn: PlannedFunction(fn, options)


class PlannedFunction(HasPlans[StepPlan]):
    """A function that runs within a budget; made by :func:`function`.

    Attributes:
        least: the most bytes that a share as the budget was so far: it never falls.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        optimizer: Callable[[], Iterable[tf.Variable]] = tuple,
        least: int = 0,
        *,
        general: bool = False,
    ) -> None:
        """Keep the settings; the function is traced at its first use.

        ``optimizer`` returns the variables of an optimizer's state, once they exist, for reports to name.
        With ``general`` the function may be traced for tensors of open sizes, as Keras traces a step.
        """
        if isinstance(fn, type) or not callable(fn):
            raise TypeError(
                f"fn is {fn!r:.80}, must be a function that computes a training step: "
                "checkmate.tf2.function(step, budget='8GiB')"
            )
        if getattr(fn, "_jit_compile", False):
            raise UnsupportedFunctionError(
                f"{fn!r} is compiled by XLA, which orders and frees in its own way: leave out "
                "jit_compile=True"
            )
        self._python = plain = getattr(fn, "python_function", fn)
        self._fn = private.with_autograph(plain) if getattr(fn, "_autograph", True) else plain
        self._options = options
        self._optimizer = optimizer
        self.least = least
        self._ran_eagerly = False
        self._general = general
        self._alone: set[Hashable] = set()
        self._steps: dict[object, _Step] = {}
        self._uses = count()
        self._lock = threading.RLock()
        update_wrapper(self, plain, updated=())

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """The plans: one for each kind of arguments, up to the 32 kinds that were used last."""
        return tuple(step.plan for step in self._steps.values())

    @as_written
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on these arguments; eagerly, or as a part of the function that is being traced.

        Raises:
            UnsupportedFunctionError: if the function can't be planned, or a shape is not known.
            InfeasibleBudgetError: if no schedule was found; names a budget that works.
        """
        if tf.config.functions_run_eagerly():
            if not self._ran_eagerly:
                _log.warning(
                    "tf.config.run_functions_eagerly(True) is set, so the step runs eagerly, one op at a "
                    "time: no plan, and no budget that holds"
                )
            self._ran_eagerly = True
            return self._python(*args, **kwargs)
        signature, tensors = Signature.of(args, kwargs)
        return self._step(signature).run(tensors)

    @as_written
    def plan(self, *args: Any, **kwargs: Any) -> StepPlan:
        """The plan for these arguments; only single ops are run. A ``tf.TensorSpec`` may replace a tensor.

        Raises as a call does.
        """
        return self._step(Signature.of(args, kwargs)[0]).plan

    @as_written
    def trace(self, *args: Any, **kwargs: Any) -> TracedFunction:
        """Trace the step for these arguments without planning it, to run it by any schedule."""
        with self._options.planning("tracing"):
            signature, _ = Signature.of(args, kwargs)
            function = self._concrete(signature)
            step = self._priced(function)
        return self._traced(signature, function, step, step.account())

    @as_written
    def price(self, *args: Any, **kwargs: Any) -> PricedStep:
        """The step for these arguments with the cost and the bytes of each op; it is not planned."""
        with self._options.planning("tracing"):
            return self._priced(self._concrete(Signature.of(args, kwargs)[0]))

    def _priced(self, function: Any) -> PricedStep:
        with tf.init_scope():
            return self._planner().price(function)

    def _step(self, signature: Signature) -> _Step:
        with self._lock:
            step = self._steps.get(signature.key)
            if step is None or step.is_outdated(self.least):
                step = self._covering(signature) or step
            if step is None or step.is_outdated(self.least):
                if step is None:
                    self._expect(signature)
                with self._options.planning("tracing"):
                    step = self._steps[signature.key] = self._planned(signature)
            elif step.excess:
                step = self._steps[signature.key] = self._with_room(signature, step)
            step.used = next(self._uses)
            return step

    def _covering(self, signature: Signature) -> _Step | None:
        """A step of open sizes that can run these arguments; None if each size has a step of its own.

        It is planned when the third size comes, for sizes up to the largest of them.
        """
        kind, sizes = signature.kind, signature.sizes
        if not self._general or kind in self._alone:
            return None
        if (found := self._known_to_cover(kind, sizes)) is not None:
            return found
        known = {key: step.bound.traced.signature for key, step in self._steps.items()}
        seen = {other.sizes for other in known.values() if other.kind == kind}
        seen |= {key.largest for other, key in self._ranges if other == kind}
        wanted = Range.of({*seen, sizes}) if len({*seen, sizes}) >= _MANY_SIZES else None
        if wanted is None:
            return None
        settings = {"budget": self.least} if self.least and wanted.largest in seen else {}
        with self._options.planning("tracing"):
            try:
                self._plan_range(signature, wanted, settings)
            except Exception as error:  # noqa: BLE001  # code of the user, which may need to know sizes
                _log.info("each size is planned alone, as open sizes fail: %s", error)
                self._alone.add(kind)
        return self._known_to_cover(kind, sizes)

    @property
    def _ranges(self) -> list[tuple[Hashable, Range]]:
        """The kinds and ranges of the steps of open sizes."""
        return [key for key in self._steps if isinstance(key, tuple) and isinstance(key[-1], Range)]

    def _known_to_cover(self, kind: Hashable, sizes: Sequence[int]) -> _Step | None:
        """The known step of open sizes whose largest are next to these; None = there is none."""
        keys = (key for key in self._ranges if key[0] == kind and key[1].covers(sizes))
        steps = (step for key in keys if not (step := self._steps[key]).is_outdated(self.least))
        return min(steps, key=lambda step: step.plan.plain_peak, default=None)

    def _plan_range(self, signature: Signature, wanted: Range, settings: Mapping[str, Any]) -> None:
        """Plan a step of open sizes, and one up to half of the sizes where it may recompute less."""
        step = self._planned(signature, wanted, **settings)
        self._expect(signature)
        self._steps[signature.kind, wanted] = step
        if step.plan.solution.overhead > 0 and wanted.largest != signature.sizes:
            self._steps[signature.kind, wanted.half] = self._planned(signature, wanted.half, **settings)

    def _expect(self, signature: Signature) -> None:
        """Make room for a new kind of arguments, and warn of the fifth that differs only in constants."""
        known = (step.bound.traced.signature for step in self._steps.values())
        changed = [value for other in known for value in signature.other_constants(other)[:1]]
        if len(changed) == _MANY_CONSTANTS - 1:
            _log.warning(
                "plan %d for the same tensors: each value of a Python argument, such as %.40r, has a plan of "
                "its own; pass values that change as tensors, such as tf.constant(0.1)",
                *(_MANY_CONSTANTS, changed[-1]),
            )
        if len(self._steps) == _MOST_KINDS:
            del self._steps[min(self._steps, key=lambda key: self._steps[key].used)]

    def _with_room(self, signature: Signature, step: _Step) -> _Step:
        """The step with room for what it held beyond what is counted, if that is feasible."""
        reserve, step.excess = self._options.reserve + step.excess, 0
        budget = step.plan.solution.problem.budget
        with self._options.planning("tracing"):
            try:
                found = self._planned(signature, reserve=reserve, budget=budget)
            except InfeasibleBudgetError as error:
                _log.warning("over the budget by bytes that are not counted; with room for them: %s", error)
                return step
        _log.warning("planned again with %s in reserve for bytes that are not counted", format_bytes(reserve))
        return found

    def _planned(self, signature: Signature, wanted: Range | None = None, **settings: Any) -> _Step:
        if tf.distribute.has_strategy():
            raise UnsupportedFunctionError(
                f"{type(tf.distribute.get_strategy()).__name__} runs a step on several devices, and a plan "
                "is for one: build and train the model outside of strategy.scope()"
            )
        function = self._concrete(signature, wanted)
        largest = signature.with_sizes(wanted.largest) if wanted is not None else None
        with tf.init_scope():  # measured ops run now, even if the caller is being traced
            plan, provisional = self._new_plan(function, self._planner(**settings), largest)
        if not self._steps and len(devices := devices_of(plan.traced.heavy)) > 1:
            _log.warning(
                "ops of the step are placed on %s, and a plan is for one device: they run one after the "
                "other, and the budget bounds what they hold together",
                " and ".join(devices),
            )
        text = repr(plan.solution)  # handlers may keep the record: it must not hold the plan
        _log.info("planned for %s: %s", signature, text)
        bound = BoundStep(self._traced(signature, function, plan.step, plan.account), plan.program)
        return _Step(plan=plan, bound=bound, options=self._options, provisional=provisional)

    def _new_plan(
        self, function: Any, planner: Planner, largest: Sequence[tf.TensorSpec] | None
    ) -> tuple[StepPlan, bool]:
        """The plan of a ``ConcreteFunction``, and whether it is provisional."""
        known = [step.plan for step in self._steps.values() if not step.provisional]
        known = [plan for plan in known if plan.step.reserve == planner.options.reserve]
        try:
            plan = planner.plan(function, known, self.least, largest)
            if self._options.budget != AUTO:
                self.least = max(self.least, plan.solution.problem.budget)
            return plan, False
        except ProfilerBusyError:
            if not other_profiler_runs():
                raise
        _log.warning(
            "another profiler is running, so no op can be measured: costs are FLOPs, and workspaces "
            "are not counted, until the first step after it"
        )
        planner = self._planner(cost_model="flops", workspaces=False)
        return planner.plan(function, known, self.least, largest), True

    def _planner(self, **settings: Any) -> Planner:
        handles = {id(v.handle) for v in self._optimizer()}
        return Planner(options=replace(self._options, **settings), optimizer=handles)

    def _concrete(self, signature: Signature, wanted: Range | None = None) -> Any:
        """The ``ConcreteFunction`` for a kind of arguments, or for a range of sizes."""
        specs = signature.specs if wanted is None else signature.with_sizes(wanted.sizes)
        traced = tf.function(lambda *tensors: signature.apply(self._fn, tensors), autograph=False)
        return traced.get_concrete_function(*specs)

    def _traced(
        self, signature: Signature, function: Any, step: PricedStep, account: Account
    ) -> TracedFunction:
        return TracedFunction(
            graph=step.graph,
            account=account,
            ordered=step.ordered,
            signature=signature,
            function=function,
            keep=self._fn,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class _Step:
    """A plan, and the step that runs by it.

    Attributes:
        provisional: whether it was planned without measuring its ops.
        watched: whether its next eager run is reported, and measured if some bytes are not counted.
        over: whether a measured run was over the budget.
        excess: the bytes to reserve in a new plan, as two measured runs were over the budget.
        used: the number of its last use, counted over all steps of the function.
    """

    plan: StepPlan
    bound: BoundStep
    options: Options
    provisional: bool
    watched: bool = True
    over: bool = False
    excess: int = 0
    used: int = 0

    def is_outdated(self, least: int) -> bool:
        """Whether to plan again: its ops can be measured now, or ``least`` bytes allow less recomputation."""
        if self.provisional and not other_profiler_runs():
            return True
        return self.plan.solution.overhead > 0 and self.plan.solution.problem.budget < least

    def run(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Run the step; if some bytes are not counted, measure the first run, and after one over the next."""
        if not self.watched or not tf.executing_eagerly():
            return self.bound.run(tensors)
        self.watched = False
        with self.options.planning("building the function"):
            _ = self.bound.replay
            self.options.report("running the first step")
            if any(self.plan.traced.uncounted):
                return self._measured_run(tensors)
            return self.bound.run(tensors)

    def _measured_run(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Run the step under the memory meter, as some of its bytes are not counted; warn of its peak."""
        plan = self.plan
        names = [op.name for op in plan.traced.uncounted]
        text = f"the bytes of {len(names)} ops depend on data and are not counted, the first is {names[0]!r}"
        measuring = memory_meter(plan.traced.captured.variables, tensors, device=device_of_this_machine())
        with ExitStack() as stack:
            try:
                meter = stack.enter_context(measuring)
            except ProfilerBusyError:
                _log.warning("%s; another profiler is running, so the first step was not measured", text)
                return self.bound.run(tensors)
            results = self.bound.run(tensors)
        budget = plan.solution.problem.budget
        if self.over:  # the first run also allocates what TensorFlow keeps
            self.excess = max(meter.peak - plan.expected, 0) if meter.peak > budget else 0
            return results
        self.watched = self.over = meter.peak > budget
        _log.warning(
            "%s: the first step held %s, the budget is %s, other steps may hold more; reserve= makes room",
            *(text, format_bytes(meter.peak), format_bytes(budget)),
        )
        return results

"""A function that computes a training step, planned anew for each kind of arguments and run as planned.

f(x) = y  ↦  f̂(x) = y, bit for bit, with peak(f̂) ≤ budget
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from typing import Any, TypeVar, overload

import tensorflow as tf

from checkmate import DFGraph
from checkmate.plugins import CostModel, Solver
from checkmate.problem import OnProgress
from checkmate.report import Account, Planned
from checkmate.units import Budget
from checkmate_tf import private
from checkmate_tf.arguments import Signature
from checkmate_tf.available import AUTO
from checkmate_tf.capture import UnsupportedFunctionError, capture
from checkmate_tf.emit import Replay, emit
from checkmate_tf.options import Options
from checkmate_tf.planning import Plan, planned, priced

__all__ = ["PlannedFunction", "function"]


_Method = TypeVar("_Method", bound=Callable[..., Any])


@overload
def function(
    fn: Callable[..., Any],
    *,
    budget: Budget = AUTO,
    solver: str | Solver = "auto",
    cost_model: str | CostModel = "profiled",
    time_limit: float = 10.0,
    workspaces: bool = True,
    reserve: int | str = 0,
    cache: bool = True,
    on_progress: OnProgress | None = None,
) -> PlannedFunction: ...
@overload
def function(
    fn: None = None,
    *,
    budget: Budget = AUTO,
    solver: str | Solver = "auto",
    cost_model: str | CostModel = "profiled",
    time_limit: float = 10.0,
    workspaces: bool = True,
    reserve: int | str = 0,
    cache: bool = True,
    on_progress: OnProgress | None = None,
) -> Callable[[Callable[..., Any]], PlannedFunction]: ...
def function(
    fn: Callable[..., Any] | None = None,
    *,
    budget: Budget = AUTO,
    solver: str | Solver = "auto",
    cost_model: str | CostModel = "profiled",
    time_limit: float = 10.0,
    workspaces: bool = True,
    reserve: int | str = 0,
    cache: bool = True,
    on_progress: OnProgress | None = None,
) -> PlannedFunction | Callable[[Callable[..., Any]], PlannedFunction]:
    """Run a function that computes losses and gradients, and may apply them, within a byte budget.

    Args:
        fn: what one would give to ``tf.function``: of tensors, nested in tuples, lists and dicts, and of
            Python values, which are constants to it. It may create variables at its first call only. Left
            out for a decorator with settings: ``@function(budget="8GiB")``.
        budget: bytes of everything that the step holds at once: variables that it uses, arguments,
            activations, gradients, the workspaces of its ops; a size (``"8GiB"``), a share of the plain
            step's peak (``"60%"``, ``0.6``), or ``"auto"``, what the device has left now.
        solver: name of an installed solver, or a solver.
        cost_model: ``"profiled"``, ``"roofline"``, ``"flops"``, an installed cost model's name, or one.
        time_limit: seconds for the solver, for each plan.
        workspaces: whether the workspace of each distinct op is measured; without, the peak is not bounded.
        reserve: bytes that the step holds besides.
        cache: whether measured costs and schedules are kept on disk, and taken from there.
        on_progress: called while ops are timed and while the solver runs.

    Returns:
        A callable of the same arguments, which plans when it meets a new kind of them.

    Raises:
        BudgetError: if the budget can't be read.
        UnsupportedFunctionError: if ``fn`` is a ``tf.function`` that XLA compiles.
        TypeError: if ``fn`` can't be called, or what is given for a cost model can't be one.

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
    options = Options.parse(
        budget=budget,
        solver=solver,
        cost_model=cost_model,
        time_limit=time_limit,
        workspaces=workspaces,
        reserve=reserve,
        cache=cache,
        on_progress=on_progress,
    )
    return PlannedFunction(fn, options) if fn is not None else lambda fn: PlannedFunction(fn, options)


def _as_written(method: _Method) -> _Method:
    """A method that stays as it is when a function that calls it is traced: it is no part of that one."""
    kept: _Method = tf.autograph.experimental.do_not_convert(method)
    return kept


class PlannedFunction(Planned[Plan]):
    """What :func:`function` returns.

    Args:
        fn: the function.
        options: how to plan.
        optimizer: gives the variables that are an optimizer's state, once they exist; for reports.

    Raises:
        TypeError, UnsupportedFunctionError: as :func:`function`.
    """

    def __init__(
        self, fn: Callable[..., Any], options: Options, optimizer: Callable[[], Iterable[tf.Variable]] = tuple
    ) -> None:
        """Remember; nothing is traced yet."""
        if not callable(fn):
            raise TypeError(f"fn is {fn!r}, must be a function that computes a training step")
        if getattr(fn, "_jit_compile", False):
            raise UnsupportedFunctionError(
                f"{fn!r} is compiled by XLA, which orders and frees in its own way: leave out "
                "jit_compile=True"
            )
        plain = getattr(fn, "python_function", fn)
        self._fn = private.with_autograph(plain) if getattr(fn, "_autograph", True) else plain
        self._options = options
        self._optimizer = optimizer
        self._steps: dict[object, _Step] = {}
        self._lock = threading.RLock()
        update_wrapper(self, plain, updated=())

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans so far: one for each kind of arguments."""
        return tuple(step.plan for step in self._steps.values())

    @_as_written
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on these arguments; eagerly, or as a part of the function that is being traced.

        Raises:
            UnsupportedFunctionError: if the function can't be planned, or a shape is not known.
            InfeasibleBudgetError: if no schedule was found; says what budget would do.
        """
        signature, tensors = Signature.of(args, kwargs)
        return self._step(signature).run(tensors)

    @_as_written
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments; ``tf.TensorSpec`` may stand for tensors. Only single ops are run.

        Raises:
            UnsupportedFunctionError, InfeasibleBudgetError: as by a call.
        """
        return self._step(Signature.of(args, kwargs)[0]).plan

    @_as_written
    def priced(self, *args: Any, **kwargs: Any) -> tuple[DFGraph, Account]:
        """The graph that would be planned on for these arguments, and what its bytes are held for.

        Raises:
            UnsupportedFunctionError: as by a call.
        """
        traced, concrete = self._concrete(Signature.of(args, kwargs)[0])
        with tf.init_scope():
            found = priced(capture(concrete), self._options, optimizer=self._optimizer_handles())
        del traced  # had to live until now
        return found

    def _step(self, signature: Signature) -> _Step:
        with self._lock:
            if signature.key not in self._steps:
                self._steps[signature.key] = self._planned(signature)
            return self._steps[signature.key]

    def _planned(self, signature: Signature) -> _Step:
        if tf.distribute.has_strategy():
            raise UnsupportedFunctionError(
                f"{type(tf.distribute.get_strategy()).__name__} runs a step on several devices, and a plan "
                "is for one: build and train the model outside of strategy.scope()"
            )
        known = list(self._steps.values())
        traced, concrete = self._concrete(signature)
        with tf.init_scope():  # what is measured runs now, though the caller may be traced
            plan = planned(
                capture(concrete),
                self._options,
                optimizer=self._optimizer_handles(),
                like=known[0].plan if known else None,
            )
        return _Step(plan, concrete, keep=traced)

    def _concrete(self, signature: Signature) -> tuple[object, Any]:
        """TensorFlow's function for a kind of arguments, and what must live as long."""
        traced = tf.function(lambda *tensors: signature.apply(self._fn, tensors), autograph=False)
        return traced, traced.get_concrete_function(*signature.specs)

    def _optimizer_handles(self) -> set[int]:
        return {id(v.handle) for v in self._optimizer()}


class _Step:
    """A plan, and the function that runs it, which is made when it is first needed.

    Args:
        plan: what was decided.
        concrete: TensorFlow's function of the plain step; knows how its outputs are nested.
        keep: what must live as long.
    """

    def __init__(self, plan: Plan, concrete: Any, keep: object) -> None:
        self.plan = plan
        self._structure = concrete.structured_outputs
        self._keep = keep
        self._replay: Replay | None = None

    def run(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The results of the step, nested as the function returns them."""
        if self._replay is None:
            with tf.init_scope():
                self._replay = emit(self.plan.traced.captured, self.plan.program)
        made = iter(self._replay(*tensors))
        leaves = tf.nest.flatten(self._structure, expand_composites=True)
        found = [None if leaf is None else next(made) for leaf in leaves]
        return tf.nest.pack_sequence_as(self._structure, found, expand_composites=True)

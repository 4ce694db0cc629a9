"""Bind a traced step to a schedule; every planned step of this package runs as a bound step.

bind: (f, σ) ↦ f̂ with f̂(x) = f(x), bit for bit; f̂ runs ops and frees buffers in the order of σ
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import tensorflow as tf

from checkmate import Schedule, simulate
from checkmate.framework import TracedStep
from checkmate_tf.capture.arguments import Signature
from checkmate_tf.capture.function_capture import UnsupportedFunctionError
from checkmate_tf.running.emit import Replay, emit
from checkmate_tf.running.ordered_step import OrderedStep
from checkmate_tf.running.program import Program

__all__ = ["BoundStep", "TracedFunction", "as_written", "bind"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def as_written(method: _Method) -> _Method:
    """Exclude a method from AutoGraph: TensorFlow traces its calls without converting its code."""
    kept: _Method = tf.autograph.experimental.do_not_convert(method)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracedFunction(TracedStep):
    """A training step that was traced and not run; :func:`bind` makes it run by a schedule of ``graph``.

    Attributes:
        ordered: TensorFlow's ops, and their relation to ``graph``.
        signature: the arguments that it was traced for.
        function: TensorFlow's ``ConcreteFunction``, which gives the structure of the results.
        keep: the Python function, so that objects it refers to, such as lookup tables, live as long.
    """

    ordered: OrderedStep
    signature: Signature
    function: Any
    keep: object

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The variables that the step uses."""
        return self.ordered.traced.captured.variables


def bind(traced: TracedFunction, schedule: Schedule) -> BoundStep:
    """Bind a traced step to a schedule, from a solver or a file; the step follows it to the letter.

    Every compute runs in the schedule's order, even if nothing reads its results. A tensor stays resident
    until the schedule frees it, even after its last reader. Any valid schedule can run. The bound step takes
    the same arguments as the step, and changes the same variables.

    Args:
        traced: from :func:`trace`.
        schedule: for ``traced.graph``.

    Raises:
        InvalidScheduleError: if the simulator rejects the schedule for ``traced.graph``.

    >>> import checkmate, checkmate.tf2, keras
    >>> model = keras.Sequential([keras.Input([64]), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    >>> specs = tf.TensorSpec([1024, 64]), tf.TensorSpec([1024, 1])
    >>> traced = checkmate.tf2.trace(model, "mse", "sgd", *specs, cost_model="flops")
    >>> least = checkmate.minimum_budget(traced.graph, solver="heuristics")
    >>> step = bind(traced, least.schedule)
    >>> prediction, loss = step(tf.ones([1024, 64]), tf.ones([1024, 1]))
    >>> prediction.shape, loss.shape
    (TensorShape([1024, 1]), TensorShape([]))
    """
    simulate(traced.graph, schedule)
    return BoundStep(traced, traced.ordered.program(schedule))


@dataclass(frozen=True, eq=False, repr=False)
class BoundStep:
    """A step that runs by a schedule; made by :func:`bind`.

    Attributes:
        traced: the step.
        program: the copies of TensorFlow's ops that run, in order.
    """

    traced: TracedFunction
    program: Program

    @as_written
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on these arguments; eagerly, or as a part of the function that is being traced.

        Raises:
            UnsupportedFunctionError: if the step was traced for arguments of another kind.
        """
        signature, tensors = Signature.of(args, kwargs)
        traced = self.traced.signature
        if signature.key != traced.key:
            raise UnsupportedFunctionError(
                f"the step was traced for {traced}, and is called with {signature}: trace it for these "
                "arguments, and find a schedule of that graph"
            )
        return self.run(tensors)

    def run(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The results of the step, nested as the traced function returns them.

        Args:
            tensors: the tensors among the arguments, in the order of ``tf.nest.flatten``.
        """
        made = iter(self.replay(*tensors))
        structure = self.traced.function.structured_outputs
        leaves = tf.nest.flatten(structure, expand_composites=True)
        found = [None if leaf is None else next(made) for leaf in leaves]
        return tf.nest.pack_sequence_as(structure, found, expand_composites=True)

    @cached_property
    def replay(self) -> Replay:
        """TensorFlow's function of the program, made at its first use."""
        with tf.init_scope():
            return emit(self.traced.ordered.traced.captured, self.program)

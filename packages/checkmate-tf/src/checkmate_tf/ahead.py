"""Planning without training: of a step nothing is run but single ops, to time them.

trace: (model, loss, optimizer, specs) ↦ graph        plan: the same and a budget ↦ plan
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from checkmate import CheckmateError, DFGraph, write_graph
from checkmate.plugins import CostModel, Solver
from checkmate.problem import OnProgress
from checkmate.report import Account
from checkmate.units import Budget
from checkmate_tf.available import AUTO
from checkmate_tf.compiled import CompiledIteration, iteration
from checkmate_tf.losses import Loss
from checkmate_tf.options import Options
from checkmate_tf.planned import PlannedFunction
from checkmate_tf.planning import Plan
from checkmate_tf.specs import specs_of

__all__ = ["Frontend", "ProgramError", "TracedStep", "plan", "trace"]


class ProgramError(CheckmateError, TypeError):
    """What was given to trace is neither a model with its loss nor a function with its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracedStep:
    """A training step that was traced and not run.

    Attributes:
        graph: the step, in the cost model's unit; what ``checkmate.solve`` and all of Checkmate's tools take.
        account: what each byte is held for.
    """

    graph: DFGraph
    account: Account

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph in the wire format: JSON, or msgpack if the name ends in ``.msgpack``."""
        write_graph(path, self.graph)

    def __repr__(self) -> str:
        """That of the graph."""
        return f"<TracedStep of {self.graph!r}>"


def trace(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    *,
    cost_model: str | CostModel = "profiled",
    workspaces: bool | None = None,
    reserve: int | str = 0,
    cache: bool = True,
    on_progress: OnProgress | None = None,
) -> TracedStep:
    """Trace one training iteration of a Keras model without running it.

    The variables of the model and of the optimizer are made if they are not there, and not changed.

    Args:
        model: as in :func:`~checkmate_tf.compile`.
        loss: as in :func:`~checkmate_tf.compile`.
        optimizer: as in :func:`~checkmate_tf.compile`.
        input_spec: ``tf.TensorSpec`` or a sample, nested as the model's inputs are.
        label_spec: the same for the labels.
        cost_model: as in :func:`~checkmate_tf.compile`; ``"roofline-A100-80GB"`` for a device that is not at
            hand.
        workspaces: whether each distinct op is run once, on made-up inputs, to measure its workspace; None =
            only if the cost model is ``"profiled"``, which runs them anyway. Without, workspaces are 0.
        reserve: bytes that the iteration holds besides.
        cache: whether measured costs are kept on disk, and taken from there.
        on_progress: called while ops are timed.

    Raises:
        CostError: if the cost model can't price the step.
        UnsupportedModelError, UnsupportedKerasError, UnsupportedFunctionError, LossError, TypeError: as
            :func:`~checkmate_tf.compile`.

    >>> import tensorflow as tf
    >>> model = keras.Sequential([keras.Input([64]), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    >>> specs = tf.TensorSpec([1024, 64]), tf.TensorSpec([1024, 1])
    >>> traced = trace(model, "mse", "adam", *specs, cost_model="flops")
    >>> traced.graph.cost_unit, traced.graph.base_size > 3 * 4 * model.count_params()
    ('flop', True)
    """
    options = _options(cost_model, workspaces, reserve=reserve, cache=cache, on_progress=on_progress)
    made = CompiledIteration(iteration(model, loss, optimizer, input_spec), options)
    return _traced(made, specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))


def plan(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    budget: Budget = AUTO,
    *,
    solver: str | Solver = "auto",
    cost_model: str | CostModel = "profiled",
    time_limit: float = 10.0,
    workspaces: bool = True,
    reserve: int | str = 0,
    cache: bool = True,
    on_progress: OnProgress | None = None,
) -> Plan:
    """Find out what a budget would cost, without training: the plan that :func:`compile` would train with.

    Args:
        model: as in :func:`~checkmate_tf.compile`.
        loss: as in :func:`~checkmate_tf.compile`.
        optimizer: as in :func:`~checkmate_tf.compile`.
        input_spec: as in :func:`trace`.
        label_spec: as in :func:`trace`.
        budget: as in :func:`~checkmate_tf.compile`.
        solver: as in :func:`~checkmate_tf.compile`.
        cost_model: as in :func:`trace`.
        time_limit: seconds for the solver.
        workspaces: as in :func:`~checkmate_tf.compile`.
        reserve: as in :func:`trace`.
        cache: whether measured costs and schedules are kept on disk, and taken from there.
        on_progress: called while ops are timed and while the solver runs.

    Returns:
        The plan, with ``solution``, ``graph``, ``report()``, ``explain()`` and ``save_report(path)``.

    Raises:
        BudgetError: if the budget can't be read.
        InfeasibleBudgetError: if no schedule was found; says what budget would do.
        CostError, UnsupportedModelError, UnsupportedKerasError, UnsupportedFunctionError, LossError,
            TypeError: as :func:`trace`.
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
    made = CompiledIteration(iteration(model, loss, optimizer, input_spec), options)
    return made.plan(specs_of("input_spec", input_spec), specs_of("label_spec", label_spec))


class Frontend:
    """The frontend ``tf``: what ``checkmate trace --tf package.module:factory`` asks."""

    def trace(
        self, program: Callable[[], tuple[Any, ...]] | tuple[Any, ...], /, **options: Any
    ) -> TracedStep:
        """Trace what a factory makes.

        Args:
            program: ``(model, loss, optimizer, input_spec, label_spec)``, as :func:`trace` takes them, or
                ``(function, arguments)``, as :func:`~checkmate_tf.function` takes them, the arguments a
                tuple, of specs or samples; or a function without arguments that returns one of these.
            options: as in :func:`trace`.

        Raises:
            ProgramError: if it is none, or returns something else.
        """
        made: Any = program() if callable(program) else program
        if isinstance(made, tuple) and len(made) == 5 and isinstance(made[0], keras.Model):
            return trace(*made, **options)
        if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple):
            function, arguments = made
            return _traced(PlannedFunction(function, _options(**options)), *arguments)
        raise ProgramError(
            f"{program!r} gave {made!r}: a factory for tracing returns (model, loss, optimizer, input_spec, "
            "label_spec) or (function, (argument, ...))"
        )


def _options(
    cost_model: str | CostModel = "profiled", workspaces: bool | None = None, **others: Any
) -> Options:
    if workspaces is None:
        workspaces = cost_model == "profiled"
    return Options.parse(cost_model=cost_model, workspaces=workspaces, **others)


def _traced(function: PlannedFunction, *arguments: Any) -> TracedStep:
    graph, account = function.priced(*arguments)
    return TracedStep(graph=graph, account=account)

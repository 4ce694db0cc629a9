"""The best layers to recompute by Keras' own rematerialization, within a budget.

    min cost(L)  over lists L of layers with  peak(L) ≤ budget

Lists are searched along lines on which the peak falls: the first k layers of a kind, in the order in which
they run. Each list is judged by the step that Keras would run: its recomputation is in the traced graph,
whose peak without a plan is predicted as that of any other step. So the prediction is that of the list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import keras

from checkmate import Budget, InfeasibleBudgetError
from checkmate.framework import TracingSettings, proved_overhead, verdict
from checkmate.units import format_bytes, parse_budget
from checkmate_tf.api.compile import CompiledIteration
from checkmate_tf.capture.losses import Loss
from checkmate_tf.capture.specs import specs_of
from checkmate_tf.planning.decide import Decision, PlainStep
from checkmate_tf.planning.options import Options
from checkmate_tf.planning.priced_step import PricedStep
from checkmate_tf.policies.remat import Remat, RematError, Used, applied, apply, code, draws
from checkmate_tf.private import sublayers

__all__ = ["TARGETS", "Exported", "Judged", "export", "judge"]

TARGETS = ("keras-remat",)
"""What a policy can be written for."""

_FROM_OUTPUT = ("linear", "relu", "sigmoid", "softmax", "tanh")
"""Activation functions whose gradient needs their output alone."""
_CHEAP = 0.02
"""If recomputed activation functions meet the budget at this extra cost, no list of layers is judged."""
_USEFUL = 0.99
"""Kinds of layers are combined if each brings the peak below this share of the plain one."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A training step under a policy of Keras.

    Attributes:
        policy: what runs again.
        peak: bytes at the peak, as Keras runs the step; the highest, as TensorFlow may start ops in several
            orders.
        overhead: cost of what runs again, as a share of the cost of the step without recomputation.
        in_scope: whether ``keras.RematScope`` can do it in ``fit``: Keras calls no recomputed layer with
            keyword arguments.
    """

    policy: Remat
    peak: int
    overhead: float
    in_scope: bool = True

    def __str__(self) -> str:
        """The verdict in one line.

        >>> str(Judged(policy=Remat(("block",)), peak=2**30, overhead=0.25))
        'remat of block: 1.00 GiB at +25.0%'
        """
        return f"{self.policy}: {format_bytes(self.peak)} at {self.overhead:+.1%}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exported:
    """The best layers found for a budget.

    Attributes:
        target: what they are written for.
        budget: bytes.
        judged: the prediction.
        plain: the step without recomputation.
        best_overhead: extra cost of a schedule of our own within the budget; None = none is known.
        bound: no schedule within the budget has a lower extra cost; 0 = nothing is proved.
        text: Python code with the names of the layers and a function ``apply(model)``.
    """

    target: str
    budget: int
    judged: Judged
    plain: Judged
    best_overhead: float | None = None
    bound: float = 0.0
    text: str = ""

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that run again."""
        return self.judged.policy.layers

    def apply(self, model: keras.Model) -> Callable[[], None]:
        """Let a model run under the policy from now on, in place; returns what undoes that.

        Args:
            model: with layers of these names. If it was trained before, compile it again.

        Raises:
            RematError: if a layer does not exist.
        """
        return apply(self.judged.policy, model)

    def __str__(self) -> str:
        """Prediction, and what is lost against our own schedule."""
        row = self.judged
        words = str(row.policy)
        return verdict(words, row.peak, self.budget, row.overhead, self.best_overhead, self.bound)

    def to_dict(self) -> dict[str, Any]:
        """The prediction and the text as plain values."""
        row = self.judged
        return {
            "target": self.target,
            "budget": self.budget,
            "policy": str(row.policy),
            "layers": [*row.policy.layers],
            "scope": row.in_scope,
            "peak": row.peak,
            "plain_peak": self.plain.peak,
            "overhead": row.overhead,
            "own_overhead": self.best_overhead,
            "bound": self.bound,
            "text": self.text,
        }


def judge(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    layers: Sequence[str] = (),
    *,
    activations: bool = False,
    **settings: Unpack[TracingSettings],
) -> Judged:
    """Find out what recomputing layers by ``keras.RematScope`` costs, and the true peak; the step is not run.

    Args:
        model: as in :func:`~checkmate_tf.trace`; it is left as it is.
        loss: as there.
        optimizer: as there.
        input_spec: as there.
        label_spec: as there.
        layers: names, as in the mode ``"list_of_layers"``; none = plain training.
        activations: judge the mode ``"activations"`` instead.
        **settings: as there.

    Raises:
        RematError: if there is no such layer.
        CostError: if the cost model can't price the step; other errors as :func:`~checkmate_tf.trace`.

    >>> import tensorflow as tf
    >>> rows = [keras.layers.Dense(256, "gelu", name=f"layer_{k}") for k in range(2)]
    >>> model = keras.Sequential([keras.Input([64]), *rows, keras.layers.Dense(1)])
    >>> specs = tf.TensorSpec([1024, 64]), tf.TensorSpec([1024, 1])
    >>> judged = judge(model, "mse", "sgd", *specs, ["layer_0"], cost_model="flops")
    >>> judged.overhead > 0, judged.in_scope  # Keras calls it with training=True
    (True, False)
    """
    search = _Search(model, loss, optimizer, input_spec, label_spec, settings)
    return search.judged(Remat(tuple(layers), activations))


def export(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | str,
    input_spec: Any,
    label_spec: Any,
    budget: Budget,
    target: str = "keras-remat",
    *,
    time_limit: float = 10.0,
    **settings: Unpack[TracingSettings],
) -> Exported:
    """Find the layers whose recomputation by Keras meets a budget at the least cost; the step is not run.

    Layers that draw random numbers, such as dropout, are left out with all that contain them: Keras would
    draw other numbers when they run again, and the gradients would be wrong.

    Args:
        model: as in :func:`~checkmate_tf.trace`; it is left as it is.
        loss: as there.
        optimizer: as there.
        input_spec: as there.
        label_spec: as there.
        budget: bytes, a size, or a share of the plain step's peak.
        target: ``"keras-remat"``: ``keras.RematScope`` with a list of layers, or with all activations.
        time_limit: seconds to solve for the schedule of our own that the layers are compared with; 0 = none.
        **settings: as there.

    Raises:
        BudgetError: if the budget can't be read.
        RematError: if no list of layers meets the budget; says the least peak found.
        CostError: if the cost model can't price the step; other errors as :func:`~checkmate_tf.trace`.
        ValueError: if there is no such target.

    >>> import tensorflow as tf
    >>> rows = [keras.layers.Dense(256, "gelu") for _ in range(4)]
    >>> model = keras.Sequential([keras.Input([64]), *rows, keras.layers.Dense(1)])
    >>> specs = tf.TensorSpec([1024, 64]), tf.TensorSpec([1024, 1])
    >>> found = export(model, "mse", "sgd", *specs, "70%", cost_model="flops", time_limit=1)
    >>> found.judged.peak <= found.budget < found.plain.peak
    True
    """
    if target not in TARGETS:
        raise ValueError(f"target is {target!r}, must be one of {', '.join(TARGETS)}")
    search = _Search(model, loss, optimizer, input_spec, label_spec, settings)
    plain = search.judged(Remat())
    search.budget = parse_budget(budget, plain.peak)
    if plain.peak > search.budget:
        search.run()
    judged = search.best()
    found = Exported(
        target=target,
        budget=search.budget,
        judged=judged,
        plain=plain,
        text=code(judged.policy, search.used[judged.policy]),
    )
    return found if time_limit <= 0 else _compared(found, search.plain, search.options, time_limit)


class _Search:
    """The policies of a model that were judged, and the best of them within the budget."""

    def __init__(
        self,
        model: keras.Model,
        loss: Loss,
        optimizer: keras.optimizers.Optimizer | str,
        input_spec: Any,
        label_spec: Any,
        settings: Any,
    ) -> None:
        self.options = Options.parse(**{"workspaces": None, **settings})
        self.model = model
        self.budget = 0
        self._step = CompiledIteration(model, loss, optimizer, input_spec, self.options)
        self._batch = specs_of("input_spec", input_spec), specs_of("label_spec", label_spec)
        self.plain = self._step.price(*self._batch)
        self.used: dict[Remat, Used] = {Remat(): Used()}
        self.found = {Remat(): Judged(policy=Remat(), peak=self.plain.highest_plain_peak, overhead=0.0)}

    def judged(self, policy: Remat) -> Judged:
        """A policy's peak and cost."""
        if policy not in self.found:
            with applied(policy, self.model) as used:
                step = self._step.price(*self._batch)
            plain = self.plain.graph.ideal_cost
            self.used[policy] = used
            self.found[policy] = Judged(
                policy=policy,
                peak=step.highest_plain_peak,
                overhead=step.graph.ideal_cost / plain - 1 if plain else 0.0,
                in_scope=not used.with_keywords,
            )
        return self.found[policy]

    def run(self) -> None:
        """Judge lists of layers until the best of each kind within the budget are known, or a cheap one."""
        activations = Remat(activations=True)
        peak = self.peak_of(activations)
        if peak is not None and peak <= self.budget and self.found[activations].overhead <= _CHEAP:
            return
        useful = [names for names in _kinds(self.model) if self.try_all(names)]
        for kinds in (useful, useful[::-1]):  # outermost first, innermost first
            names = list[str]()
            for kind in kinds:
                if not _nested(self.model, names, kind):
                    names += kind
            if tuple(names) not in useful:
                order = dict.fromkeys(layer.name for layer in sublayers(self.model) if layer.name in names)
                self.try_all(tuple(order))

    def try_all(self, names: tuple[str, ...]) -> bool:
        """Judge all of these layers, and the first ones that meet the budget; whether they lower the peak."""
        peak = self.peak_of(Remat(names))
        if peak is not None and peak <= self.budget:
            self.follow(names)
        return peak is not None and peak < _USEFUL * self.found[Remat()].peak

    def follow(self, names: Sequence[str]) -> None:
        """Find how many of these layers, the first ones, meet the budget, by bisection; all of them do."""
        low, high = 1, len(names)
        while low < high:
            middle = (low + high) // 2
            peak = self.peak_of(Remat(tuple(names[:middle])))
            low, high = (low, middle) if peak is not None and peak <= self.budget else (middle + 1, high)

    def peak_of(self, policy: Remat) -> int | None:
        """The peak of a policy; None = Keras can't run the model so."""
        try:
            return self.judged(policy).peak
        except Exception as error:  # noqa: BLE001  # Keras recomputes some layers only in part
            _log.info("%s: Keras can't: %s", policy, error)
            return None

    def best(self) -> Judged:
        """The cheapest policy within the budget; of equally cheap ones that of the lowest peak."""
        fitting = [judged for judged in self.found.values() if judged.peak <= self.budget]
        if fitting:
            return min(fitting, key=lambda judged: (judged.overhead, judged.peak))
        least = min(self.found.values(), key=lambda judged: judged.peak)
        random = [layer.name for layer in sublayers(self.model) if draws(layer)]
        left = f"; layers that draw random numbers are left out, such as {random[0]!r}" if random else ""
        raise RematError(
            f"no list of layers that was tried is within {format_bytes(self.budget)}: the least peak is "
            f"{format_bytes(least.peak)}, {least.policy}{left}. enable() and compile() may need less"
        )


def _kinds(model: keras.Model) -> Iterator[tuple[str, ...]]:
    """The names of layers of one kind, by depth, class and activation function, in order.

    Left out are layers that draw random numbers and, of layers without layers in them, single ones and those
    that hold no more than their output.
    """
    level: list[Any] = [model]
    seen: set[int] = set()
    while level:
        below = [
            part for layer in level for part in sublayers(layer, recursive=False) if id(part) not in seen
        ]
        seen.update(map(id, below))
        for activation, layers in _alike(below):
            drawn = {layer.name for layer in layers if draws(layer)}
            names = dict.fromkeys(layer.name for layer in layers if layer.name not in drawn)
            is_block = any(map(sublayers, layers))
            if names and (is_block or (len(names) > 1 and _has_inside(layers[0], activation))):
                yield tuple(names)
        level = below


def _alike(layers: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Layers by class and activation function, with the name of the latter."""
    kinds: dict[tuple[type, str], list[Any]] = {}
    for layer in layers:
        if not isinstance(layer, keras.layers.InputLayer):
            activation = getattr(getattr(layer, "activation", None), "__name__", "")
            kinds.setdefault((type(layer), activation), []).append(layer)
    return [(activation, alike) for (_, activation), alike in kinds.items()]


def _has_inside(layer: Any, activation: str) -> bool:
    """Whether a layer without layers in it may hold more than its output for the backward pass."""
    if not type(layer).__module__.startswith("keras."):
        return True
    if isinstance(layer, keras.layers.BatchNormalization):
        return False
    return activation not in _FROM_OUTPUT if activation else bool(layer.weights)


def _nested(model: keras.Model, some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a layer of one of these lists of names is in one of the other."""
    named = [layer for layer in sublayers(model) if layer.name in {*some, *others}]
    inside = {(layer.name, part.name) for layer in named for part in sublayers(layer)}
    pairs = [(a, b) for a in some for b in others]
    return any((a, b) in inside or (b, a) in inside for a, b in pairs)


def _compared(found: Exported, step: PricedStep, options: Options, time_limit: float) -> Exported:
    """What was found, beside our own schedule for the budget."""
    options = replace(options, budget=found.budget, time_limit=time_limit)
    decision = Decision(step=step, plain=PlainStep.of(step), budget=found.budget, options=options)
    try:
        solution = decision.plan().solution
    except InfeasibleBudgetError:
        return found
    return replace(found, best_overhead=solution.overhead, bound=proved_overhead(solution))

"""Keras' own rematerialization, applied to a model that exists: which layers run again in the backward pass.

    y = f(x):  the forward pass keeps x alone; the backward pass runs f(x) again, then its gradient

``keras.RematScope``, of Keras 3.9 or newer, marks layers when they are made: a marked layer calls
``tf.recompute_grad`` around its ``call``. Here ``call`` is replaced, which gives the same ops.
``tf.recompute_grad`` takes no keyword arguments in a graph, so that the scope fails where Keras calls a layer
with some, such as ``training``; the replacement passes the tensors among them by position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from checkmate import CheckmateError
from checkmate_tf.private import sublayers

__all__ = ["Remat", "RematError", "Used", "applied", "apply", "code", "draws"]


class RematError(CheckmateError, ValueError):
    """No layers of a model can be recomputed as asked; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Remat:
    """What runs again.

    Attributes:
        layers: names of layers, at any depth; every layer of such a name runs again.
        activations: whether the activation functions of all layers run again instead.
    """

    layers: tuple[str, ...] = ()
    activations: bool = False

    def __str__(self) -> str:
        """In words.

        >>> str(Remat()), str(Remat(("block_0", "block_1"))), str(Remat(activations=True))
        ('plain', 'remat of 2 layers, block_0 … block_1', 'remat of activations')
        """
        if self.activations:
            return "remat of activations"
        if len(self.layers) < 2:
            return f"remat of {self.layers[0]}" if self.layers else "plain"
        return f"remat of {len(self.layers)} layers, {self.layers[0]} … {self.layers[-1]}"

    @property
    def scope(self) -> str:
        """The scope of Keras that does this to a model which is made in it."""
        mode = "activations" if self.activations else "list_of_layers"
        names = "" if self.activations else ", layer_names=LAYERS"
        return f'keras.RematScope(mode="{mode}"{names})'


@dataclass(slots=True)
class Used:
    """What was seen while a model ran under a policy.

    Attributes:
        with_keywords: names of recomputed layers that Keras called with keyword arguments.
    """

    with_keywords: dict[str, None] = field(default_factory=dict)


def apply(policy: Remat, model: keras.Model, used: Used | None = None) -> Callable[[], None]:
    """Let a model run under a policy from now on; returns what undoes that.

    A function that was traced before, such as that of ``fit``, does not change.

    Raises:
        RematError: if a layer does not exist.
    """
    layers = sublayers(model)
    if missing := set(policy.layers) - {layer.name for layer in layers}:
        raise RematError(
            f"model {model.name!r} has no layer {min(missing)!r}. Keras counts on in the names that it "
            "gives: make the model in a fresh process, or give its layers names"
        )
    changed = [layer for layer in layers if _activation(layer) if policy.activations]
    changed += [layer for layer in layers if layer.name in policy.layers]
    for layer in changed:
        wrap = _with_activation if policy.activations else _recomputed
        layer.call = wrap(layer, layer.call, Used() if used is None else used)

    def undo() -> None:
        for layer in changed:
            del layer.call

    return undo


@contextmanager
def applied(policy: Remat, model: keras.Model) -> Iterator[Used]:
    """Let a model run under a policy in this block, and see how."""
    used = Used()
    undo = apply(policy, model, used)
    try:
        yield used
    finally:
        undo()


def draws(layer: Any) -> bool:
    """Whether a layer, or a layer in it, draws random numbers: run again, it would draw others."""
    parts = (layer, *sublayers(layer))
    return any(
        isinstance(value, keras.random.SeedGenerator) for part in parts for value in vars(part).values()
    )


def code(policy: Remat, used: Used) -> str:
    """Python code that applies a policy, to paste or to import; it needs TensorFlow only."""
    if policy == Remat():
        return "# Nothing needs to run again.\n"
    names = "".join(f"    {name!r},\n" for name in policy.layers)
    listed = f"LAYERS = [\n{names}]\n" if policy.layers else ""
    if used.with_keywords:
        first = next(iter(used.with_keywords))
        remark = f"# Not in a graph by {policy.scope}: Keras\n# calls {first!r} with keyword arguments.\n"
    else:
        remark = f"# The same, for a model that is made in it: with {policy.scope}\n"
    return (_ACTIVATIONS if policy.activations else _LAYERS).format(remark=remark, listed=listed)


def _activation(layer: Any) -> bool:
    return getattr(layer, "activation", None) is not None


def _recomputed(layer: Any, call: Callable[..., Any], used: Used) -> Callable[..., Any]:
    """``call`` by ``tf.recompute_grad``; floating-point tensors go by position, others are constants."""

    def run(*args: Any, **kwargs: Any) -> Any:
        values = tf.nest.flatten((args, kwargs))
        moved = [k for k, x in enumerate(values) if tf.is_tensor(x) and x.dtype.is_floating]
        if kwargs:
            used.with_keywords[layer.name] = None

        def again(*tensors: Any) -> Any:
            given = values.copy()
            for k, x in zip(moved, tensors, strict=True):
                given[k] = x
            again_args, again_kwargs = tf.nest.pack_sequence_as((args, kwargs), given)
            return call(*again_args, **again_kwargs)

        return tf.recompute_grad(again)(*(values[k] for k in moved))

    return run


def _with_activation(layer: Any, call: Callable[..., Any], used: Used) -> Callable[..., Any]:
    """``call`` with the activation by ``tf.recompute_grad``, as the scope does it."""
    del used

    def run(*args: Any, **kwargs: Any) -> Any:
        activation = layer.activation
        layer.activation = tf.recompute_grad(activation)
        try:
            return call(*args, **kwargs)
        finally:
            layer.activation = activation

    return run


_LAYERS = """\
import tensorflow as tf

{listed}
{remark}

def apply(model):  # in place, before fit or compile
    for layer in model._flatten_layers():
        if layer.name in LAYERS:
            layer.call = recomputed(layer.call)


def recomputed(call):
    def run(*args, **kwargs):
        values = tf.nest.flatten((args, kwargs))
        moved = [k for k, x in enumerate(values) if tf.is_tensor(x) and x.dtype.is_floating]

        def again(*tensors):
            given = dict(enumerate(values)) | dict(zip(moved, tensors))
            positional, named = tf.nest.pack_sequence_as((args, kwargs), list(given.values()))
            return call(*positional, **named)

        return tf.recompute_grad(again)(*(values[k] for k in moved))

    return run
"""

_ACTIVATIONS = """\
import tensorflow as tf

{listed}{remark}

def apply(model):  # in place, before fit or compile
    for layer in model._flatten_layers():
        if getattr(layer, "activation", None) is not None:
            layer.call = recomputed(layer, layer.call)


def recomputed(layer, call):
    def run(*args, **kwargs):
        activation = layer.activation
        layer.activation = tf.recompute_grad(activation)
        try:
            return call(*args, **kwargs)
        finally:
            layer.activation = activation

    return run
"""

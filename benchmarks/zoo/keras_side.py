"""The networks in Keras: their layers as the functional model has them, or traced by TensorFlow.

For layers, the model is built in a TensorFlow graph that is never run, so its variables take no memory.
Tracing op by op needs real variables.
"""

from __future__ import annotations

import dataclasses
from math import prod

import keras
import tensorflow as tf

import checkmate_tf
from checkmate import DFGraph
from zoo.keras_layers import listed
from zoo.keras_nets import NETS, SEGMENTING
from zoo.layers import training_graph

__all__ = ["layers", "ops", "parameter_count"]


def layers(name: str, *, batch: int, small: bool) -> DFGraph:
    """One op for each layer; see :mod:`zoo.layers`."""
    with tf.Graph().as_default():
        model = NETS[name](small)
        found, output = listed(model, batch)
        return training_graph(
            f"{name} layers, keras, batch {batch}",
            found,
            inputs={"x": 4 * batch * prod(model.inputs[0].shape[1:])},
            output=output,
            parameter_bytes=4 * _count(model),
        )


def ops(name: str, *, batch: int, small: bool) -> DFGraph:
    """Forward, loss, backward and plain gradient descent as TensorFlow traces them, from specs."""
    model = NETS[name](small)
    made = model.output.shape[1:-1] if name in SEGMENTING else ()
    traced = checkmate_tf.trace(
        model,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "sgd",
        tf.TensorSpec([batch, *model.inputs[0].shape[1:]]),
        tf.TensorSpec([batch, *made], tf.int32),
        cost_model="flops",
    )
    return dataclasses.replace(traced.graph, name=f"{name} ops, keras, batch {batch}")


def parameter_count(name: str, *, small: bool) -> int:
    """The number of trained parameters."""
    with tf.Graph().as_default():
        return _count(NETS[name](small))


def _count(model: keras.Model) -> int:
    return sum(prod(weight.shape) for weight in model.trainable_weights)

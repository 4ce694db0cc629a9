"""The buffers that models, optimizers, variables and tensors hold: address ↦ bytes, each buffer once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

__all__ = ["buffers_of", "resident_bytes"]


def resident_bytes(*resident: object) -> int:
    """Bytes of the buffers of models, optimizers, variables, tensors and containers of these, each once.

    >>> x = tf.zeros([256])
    >>> resident_bytes(x, [tf.identity(x), {"weight": tf.Variable(tf.zeros([2]))}])
    1032
    """
    return sum(buffers_of(resident).values())


def buffers_of(resident: object) -> dict[int, int]:
    """Address → bytes; where TensorFlow shows no address, as on a GPU, a number in its place."""
    sizes = {}
    for tensor in _tensors(resident):
        address = _address(tensor)
        sizes[-1 - id(tensor) if address is None else address] = _bytes(tensor)
    return sizes


def _tensors(value: object) -> Iterator[tf.Tensor | tf.Variable]:
    """The tensors of a nest; of a variable, what it holds now."""
    if isinstance(value, tf.Variable):
        yield value.read_value() if "CPU" in value.device else value
    elif isinstance(value, tf.Tensor):
        yield value
    elif isinstance(value, tf.distribute.DistributedValues | Mapping):
        yield from _tensors(list(value.values() if isinstance(value, Mapping) else value.values))
    elif isinstance(held := getattr(value, "variables", None), Iterable):  # a model, a layer, an optimizer
        yield from _tensors(list(held))
    elif isinstance(held := getattr(value, "value", None), tf.Variable | tf.Tensor):  # a variable of Keras
        yield from _tensors(held)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            yield from _tensors(item)


def _bytes(tensor: tf.Tensor | tf.Variable) -> int:
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)


def _address(tensor: tf.Tensor | tf.Variable) -> int | None:
    """Where a tensor's buffer starts, if it is in the memory of the host and has one."""
    if not isinstance(tensor, tf.Tensor) or "CPU" not in tensor.device:
        return None
    try:
        return int(np.asarray(memoryview(tensor)).__array_interface__["data"][0])
    except ValueError:  # bfloat16 and its like: Python has no word for them, but bits are bits
        same = tf.bitcast(tensor, {1: tf.uint8, 2: tf.uint16}[tensor.dtype.size])
        return int(np.asarray(memoryview(same)).__array_interface__["data"][0])

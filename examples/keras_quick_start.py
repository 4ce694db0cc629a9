"""The quick start of the original Checkmate: one call trains a Keras model within a byte budget.

    python examples/keras_quick_start.py [BUDGET]

Data and labels are synthetic and the network is small, so this runs on any machine in a minute.
"""

from __future__ import annotations

import sys

import keras
import tensorflow as tf

import checkmate.tf2

BATCH, SIDE, CLASSES = 16, 64, 10


def dataset(batches: int) -> tf.data.Dataset:
    """Images whose class is the position of a bright stripe."""
    generator = tf.random.Generator.from_seed(1)
    labels = generator.uniform([batches * BATCH], 0, CLASSES, tf.int32)
    stripes = tf.one_hot(labels * SIDE // CLASSES, SIDE)[:, None, :, None]
    images = generator.normal([batches * BATCH, SIDE, SIDE, 3]) + 4 * stripes
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH, drop_remainder=True)


def main(budget: str = "60%", batches: int = 20) -> list[float]:
    """Train, and print losses and the report; return the losses."""
    keras.utils.set_random_seed(0)
    train_ds = dataset(batches)
    model = keras.applications.MobileNet(weights=None, input_shape=(SIDE, SIDE, 3), classes=CLASSES)
    loss = keras.losses.SparseCategoricalCrossentropy()
    optimizer = keras.optimizers.Adam(1e-3)

    # The one call: trace, measure, solve. The specs name the batch's size; sample tensors work too.
    image_spec, label_spec = train_ds.element_spec
    train_iteration_fn = checkmate.tf2.compile(
        model, loss, optimizer, input_spec=image_spec, label_spec=label_spec, budget=budget
    )

    losses = []
    for image, label in train_ds:
        _prediction, loss_value = train_iteration_fn(image, label)
        losses.append(float(loss_value))
        tf.print(f"step {len(losses)}: loss {losses[-1]:.4f}")

    with checkmate.tf2.memory_meter(model, optimizer, image, label) as meter:
        train_iteration_fn(image, label)
    tf.print(str(train_iteration_fn.report(meter)))
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:2])

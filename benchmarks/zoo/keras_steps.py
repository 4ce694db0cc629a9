"""Small Keras models with a training step of their own, as people write them."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

__all__ = ["GAN", "VAE", "Diffusion", "Siamese"]

_SIDE, _LATENT = 32, 32


def _down(*, outputs: int, width: int = 32) -> keras.Sequential:
    stack: list[Any] = [keras.Input((_SIDE, _SIDE, 3))]
    for level in range(3):
        stack += [layers.Conv2D(width << level, 3, strides=2 if level else 1, padding="same")]
        stack += [layers.BatchNormalization(), layers.LeakyReLU()]
    return keras.Sequential([*stack, layers.Flatten(), layers.Dropout(0.2), layers.Dense(outputs)])


def _up(*, width: int = 32) -> keras.Sequential:
    stack: list[Any] = [keras.Input((_LATENT,)), layers.Dense(8 * 8 * 4 * width)]
    stack += [layers.Reshape((8, 8, 4 * width))]
    for level in (1, 0):
        stack += [layers.Conv2DTranspose(width << level, 3, strides=2, padding="same")]
        stack += [layers.BatchNormalization(), layers.LeakyReLU()]
    return keras.Sequential([*stack, layers.Conv2D(3, 3, padding="same")])


class VAE(keras.Model):  # type: ignore[misc]
    """A variational autoencoder: noise in the middle, and a loss of two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = _down(outputs=2 * _LATENT), _up()
        self.seeds = keras.random.SeedGenerator(0)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train one step; the losses."""
        (images,) = data if isinstance(data, tuple) else (data,)
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(images, training=True), 2, axis=1)
            noise = keras.random.normal(tf.shape(mean), seed=self.seeds)
            made = self.decoder(mean + tf.exp(0.5 * log_variance) * noise, training=True)
            reconstruction = tf.reduce_mean(tf.reduce_sum(tf.square(images - made), axis=(1, 2, 3)))
            divergence = 1 + log_variance - tf.square(mean) - tf.exp(log_variance)
            loss = reconstruction - 0.5 * tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss, "reconstruction": reconstruction}


class GAN(keras.Model):  # type: ignore[misc]
    """A generator and a discriminator, each with an optimizer, trained in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = _up(), _down(outputs=1)
        self.of_discriminator = keras.optimizers.Adam(1e-4)
        self.seeds = keras.random.SeedGenerator(0)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train both; their losses."""
        (images,) = data if isinstance(data, tuple) else (data,)
        noise = keras.random.normal((tf.shape(images)[0], _LATENT), seed=self.seeds)
        with tf.GradientTape() as one, tf.GradientTape() as other:
            made = self.generator(noise, training=True)
            real = self.discriminator(images, training=True)
            fake = self.discriminator(made, training=True)
            of_real = tf.nn.sigmoid_cross_entropy_with_logits(tf.ones_like(real), real)
            of_fake = tf.nn.sigmoid_cross_entropy_with_logits(tf.zeros_like(fake), fake)
            told_apart = tf.reduce_mean(of_real) + tf.reduce_mean(of_fake)
            fooled = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.ones_like(fake), fake))
        for tape, loss, net, optimizer in (
            (one, told_apart, self.discriminator, self.of_discriminator),
            (other, fooled, self.generator, self.optimizer),
        ):
            gradients = tape.gradient(loss, net.trainable_weights)
            optimizer.apply_gradients(zip(gradients, net.trainable_weights, strict=True))
        return {"loss": told_apart, "generator": fooled}


class Siamese(keras.Model):  # type: ignore[misc]
    """Two images through one network, and a contrastive loss over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _down(outputs=64)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train one step; the loss."""
        ours, theirs = data
        with tf.GradientTape() as tape:
            a, b = (tf.math.l2_normalize(self.encoder(x, training=True), axis=1) for x in (ours, theirs))
            near = tf.matmul(a, b, transpose_b=True) / 0.1
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(near)[0]), near)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"mean": loss}


class Diffusion(keras.Model):  # type: ignore[misc]
    """A network that finds the noise in images; its weights are averaged after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.average = _denoiser(), _denoiser()
        self.average.trainable = False
        self.seeds = keras.random.SeedGenerator(0)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train one step; the loss."""
        (images,) = data if isinstance(data, tuple) else (data,)
        noise = keras.random.normal(tf.shape(images), seed=self.seeds)
        share = keras.random.uniform((tf.shape(images)[0], 1, 1, 1), seed=self.seeds)
        with tf.GradientTape() as tape:
            found = self.network(tf.sqrt(1 - share) * images + tf.sqrt(share) * noise, training=True)
            loss = tf.reduce_mean(tf.square(found - noise))
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        for mean, weight in zip(self.average.weights, self.network.weights, strict=True):
            mean.assign(0.99 * mean + 0.01 * weight)
        return {"mean": loss}


def _denoiser(*, width: int = 32) -> keras.Model:
    inputs = x = keras.Input((_SIDE, _SIDE, 3))
    skips = []
    for level in range(2):
        x = layers.Conv2D(width << level, 3, padding="same", activation="swish")(x)
        skips.append(layers.GroupNormalization(8)(x))
        x = layers.AveragePooling2D(2)(skips[-1])
    x = layers.Conv2D(width << 2, 3, padding="same", activation="swish")(x)
    for level in (1, 0):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skips[level]])
        x = layers.Conv2D(width << level, 3, padding="same", activation="swish")(x)
    return keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(x))

"""Training steps of well-known networks: flops and bytes follow from shapes alone.

Activations are float32 in batch × channels × side × side, or batch × sequence × width. A multiply-add counts
two flops; element-wise ops count a few per element (see the constants); moving data counts none. Batch,
labels and parameters are graph inputs, the loss and all parameter gradients outputs. A cost model for a
device turns such a graph into seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from checkmate.errors import GraphError
from checkmate.generators.synthetic import check_counts
from checkmate.generators.training import FLOAT, ForwardNet
from checkmate.model.graph import DFGraph

__all__ = ["densenet", "residual", "transformer", "unet"]

_INDEX = 8  # bytes of an int64
_NORM_FLOPS, _SOFTMAX_FLOPS, _GELU_FLOPS = 8, 5, 8  # per element


@dataclass(frozen=True, slots=True)
class _Image:
    """An activation: tensor ``t`` of batch × channels × side × side floats."""

    t: int
    channels: int
    side: int


@dataclass(slots=True)
class _ImageNet:
    """A forward net over images."""

    batch: int
    net: ForwardNet
    labels: int = field(init=False)

    def size(self, channels: int, side: int) -> int:
        return FLOAT * self.batch * channels * side * side

    def image(self, channels: int, side: int) -> _Image:
        return _Image(self.net.data("image", self.size(channels, side)), channels, side)

    def conv(self, name: str, x: _Image, channels: int, kernel: int = 3) -> _Image:
        """Convolution with stride 1, which keeps the side."""
        taps = kernel * kernel * x.channels * channels
        weight = self.net.parameter(f"{name}.weight", FLOAT * taps)
        flops = 2 * self.batch * x.side**2 * taps
        t = self.net.op(name, [x.t, weight], self.size(channels, x.side), flops, saves=[x.t, weight])
        return _Image(t, channels, x.side)

    def up_conv(self, name: str, x: _Image, channels: int) -> _Image:
        """Transposed convolution, kernel and stride 2: twice the side."""
        taps = 4 * x.channels * channels
        weight = self.net.parameter(f"{name}.weight", FLOAT * taps)
        size, flops = self.size(channels, 2 * x.side), 2 * self.batch * x.side**2 * taps
        t = self.net.op(name, [x.t, weight], size, flops, saves=[x.t, weight])
        return _Image(t, channels, 2 * x.side)

    def norm(self, name: str, x: _Image) -> _Image:
        """Batch normalization: the backward pass needs mean and deviation of each channel."""
        weight = self.net.parameter(f"{name}.weight", FLOAT * 2 * x.channels)
        size = self.size(x.channels, x.side)
        flops = _NORM_FLOPS * size // FLOAT
        extra = FLOAT * 2 * x.channels
        t = self.net.op(name, [x.t, weight], size, flops, saves=[x.t, weight], extra=extra)
        return _Image(t, x.channels, x.side)

    def relu(self, name: str, x: _Image) -> _Image:
        size = self.size(x.channels, x.side)
        return _Image(self.net.op(name, [x.t], size, size // FLOAT, saves_output=True), x.channels, x.side)

    def pool(self, name: str, x: _Image, stride: int = 2) -> _Image:
        """Maximum of each stride × stride: the backward pass needs its position."""
        side = x.side // stride
        size, flops = self.size(x.channels, side), self.batch * x.channels * x.side**2
        t = self.net.op(name, [x.t], size, flops, extra=size // FLOAT * _INDEX)
        return _Image(t, x.channels, side)

    def concat(self, name: str, *xs: _Image) -> _Image:
        channels, side = sum(x.channels for x in xs), xs[0].side
        t = self.net.op(name, [x.t for x in xs], self.size(channels, side), 0)
        return _Image(t, channels, side)

    def classified(self, x: _Image, classes: int) -> DFGraph:
        """Average over all pixels, one linear layer, loss."""
        n_pixels = self.batch * x.channels * x.side**2
        mean = self.net.op("average", [x.t], FLOAT * self.batch * x.channels, n_pixels)
        weight = self.net.parameter("classifier.weight", FLOAT * x.channels * classes)
        flops = 2 * self.batch * x.channels * classes
        size = FLOAT * self.batch * classes
        logits = self.net.op("classifier", [mean, weight], size, flops, saves=[mean, weight])
        return self.net.training_step(logits, self.net.data("labels", _INDEX * self.batch))


def residual(
    blocks: int, *, batch: int = 32, channels: int = 64, side: int = 56, classes: int = 10
) -> DFGraph:
    """A residual net (He et al., "Deep residual learning for image recognition", 2016) of one width.

    A stem (convolution, norm, relu), ``blocks`` blocks (convolution, norm, relu, convolution, norm, sum with
    the block's input, relu), average, linear classifier, loss. Every activation has ``channels`` and is
    ``side`` pixels wide; the image has 3 channels, the prediction ``classes``.

    Raises:
        GraphError: on a number that is too small.

    >>> residual(4)
    <DFGraph 'residual4': 67 ops, 116 tensors, cost in flop>
    """
    check_counts("residual", least=0, blocks=blocks)
    check_counts("residual", batch=batch, channels=channels, side=side, classes=classes)
    net = _ImageNet(batch, ForwardNet(f"residual{blocks}"))
    x = net.relu("stem.relu", net.norm("stem.norm", net.conv("stem.conv", net.image(3, side), channels)))
    for b in range(blocks):
        name = f"block{b}"
        y = net.norm(f"{name}.norm1", net.conv(f"{name}.conv1", x, channels))
        y = net.relu(f"{name}.relu1", y)
        y = net.norm(f"{name}.norm2", net.conv(f"{name}.conv2", y, channels))
        total = _Image(net.net.add(f"{name}.sum", y.t, x.t), channels, side)
        x = net.relu(f"{name}.relu2", total)
    return net.classified(x, classes)


def unet(depth: int, *, batch: int = 8, channels: int = 64, side: int = 256, classes: int = 2) -> DFGraph:
    """A U-Net (Ronneberger et al., 2015): ``depth`` levels down and up, joined by skip connections.

    Every level has two convolutions with relu; each level down has half the side and twice the channels. The
    first level is ``side`` pixels wide, divisible by 2^depth, and has ``channels`` channels; the image has 3
    channels, the prediction has ``classes`` numbers for each pixel.

    Raises:
        GraphError: on a number that is too small, or a side not divisible by 2^depth.

    >>> unet(4)
    <DFGraph 'unet4': 103 ops, 159 tensors, cost in flop>
    """
    check_counts("unet", least=0, depth=depth)
    check_counts("unet", batch=batch, channels=channels, side=side, classes=classes)
    if depth >= side.bit_length() or side % 2**depth:
        raise GraphError(f"unet: side {side} must be divisible by 2^depth = 2^{depth}")
    net = _ImageNet(batch, ForwardNet(f"unet{depth}"))

    def twice(name: str, x: _Image, width: int) -> _Image:
        for i in (1, 2):
            x = net.relu(f"{name}.relu{i}", net.conv(f"{name}.conv{i}", x, width))
        return x

    x, skipped = net.image(3, side), []
    for level in range(depth):
        skipped.append(twice(f"down{level}", x, channels * 2**level))
        x = net.pool(f"down{level}.pool", skipped[-1])
    x = twice("bottom", x, channels * 2**depth)
    for level in reversed(range(depth)):
        up = net.up_conv(f"up{level}.conv0", x, channels * 2**level)
        x = twice(f"up{level}", net.concat(f"up{level}.concat", skipped[level], up), channels * 2**level)
    prediction = net.conv("prediction", x, classes, kernel=1)
    return net.net.training_step(prediction.t, net.net.data("labels", _INDEX * batch * side**2))


def densenet(
    layers: int, *, batch: int = 32, growth: int = 12, channels: int = 24, side: int = 32, classes: int = 10
) -> DFGraph:
    """One dense block (Huang et al., "Densely connected convolutional networks", 2017).

    Layer i copies the stem and all earlier layers' outputs into one tensor, then norm, relu, convolution to
    ``growth`` channels. The bytes of the copies grow with the square of ``layers``; recomputing them is the
    method of Pleiss et al., "Memory-efficient implementation of DenseNets" (2017). The image has 3 channels,
    the stem ``channels``, both are ``side`` pixels wide; the prediction has ``classes`` numbers.

    Raises:
        GraphError: on a number that is too small.

    >>> densenet(4)
    <DFGraph 'densenet4': 55 ops, 94 tensors, cost in flop>
    """
    check_counts("densenet", least=0, layers=layers)
    check_counts("densenet", batch=batch, growth=growth, channels=channels, side=side, classes=classes)
    net = _ImageNet(batch, ForwardNet(f"densenet{layers}"))
    features = [net.conv("stem.conv", net.image(3, side), channels)]
    for i in range(layers):
        name = f"layer{i}"
        joined = net.concat(f"{name}.concat", *features)
        y = net.relu(f"{name}.relu", net.norm(f"{name}.norm", joined))
        features.append(net.conv(f"{name}.conv", y, growth))
    joined = net.concat("end.concat", *features)
    return net.classified(net.relu("end.relu", net.norm("end.norm", joined)), classes)


def transformer(
    layers: int,
    *,
    batch: int = 8,
    sequence: int = 512,
    d_model: int = 768,
    heads: int = 12,
    vocabulary: int = 32_000,
    dropout: bool = False,
) -> DFGraph:
    """A decoder-only transformer with norms in front (Radford et al., GPT-2, 2019), attention spelled out.

    Embedding, ``layers`` layers, norm, projection onto the vocabulary, loss. A layer is: norm; query, key and
    value; scores, softmax, context; projection; sum; norm; linear to 4·d_model, GELU, linear back; sum. With
    ``dropout``, elements of the attention weights and of both branches are dropped; the random masks can't be
    recomputed, so they stay until the backward pass. A batch has ``batch`` sequences of ``sequence`` tokens.

    Raises:
        GraphError: on a number that is too small, or heads that don't divide the width.

    >>> transformer(12)
    <DFGraph 'transformer12': 367 ops, 616 tensors, cost in flop>
    """
    check_counts("transformer", least=0, layers=layers)
    check_counts(
        "transformer", batch=batch, sequence=sequence, d_model=d_model, heads=heads, vocabulary=vocabulary
    )
    if d_model % heads:
        raise GraphError(f"transformer: d_model {d_model} must be divisible by heads {heads}")
    net = ForwardNet(f"transformer{layers}")
    tokens, weights = batch * sequence, batch * heads * sequence**2
    width = FLOAT * tokens * d_model

    def linear(name: str, x: int, d_in: int, d_out: int) -> int:
        weight = net.parameter(f"{name}.weight", FLOAT * d_in * d_out)
        return net.op(name, [x, weight], FLOAT * tokens * d_out, 2 * tokens * d_in * d_out, saves=[x, weight])

    def norm(name: str, x: int) -> int:
        weight = net.parameter(f"{name}.weight", FLOAT * 2 * d_model)
        flops, extra = _NORM_FLOPS * tokens * d_model, FLOAT * 2 * tokens
        return net.op(name, [x, weight], width, flops, saves=[x, weight], extra=extra)

    def dropped(name: str, x: int) -> int:
        return net.dropout(name, x) if dropout else x

    def attention(name: str, x: int) -> int:
        query, key, value = (
            linear(f"{name}.{each}", x, d_model, d_model) for each in ("query", "key", "value")
        )
        flops = 2 * batch * sequence**2 * d_model
        scores = net.op(f"{name}.scores", [query, key], FLOAT * weights, flops, saves=[query, key])
        chosen = net.op(
            f"{name}.softmax", [scores], FLOAT * weights, _SOFTMAX_FLOPS * weights, saves_output=True
        )
        chosen = dropped(f"{name}.dropout", chosen)
        context = net.op(f"{name}.context", [chosen, value], width, flops, saves=[chosen, value])
        return linear(f"{name}.projection", context, d_model, d_model)

    def mixed(name: str, x: int) -> int:
        wide = linear(f"{name}.linear1", x, d_model, 4 * d_model)
        bent = net.op(f"{name}.gelu", [wide], 4 * width, _GELU_FLOPS * 4 * tokens * d_model, saves=[wide])
        return linear(f"{name}.linear2", bent, 4 * d_model, d_model)

    words = net.data("tokens", _INDEX * tokens)
    table = net.parameter("embedding.weight", FLOAT * vocabulary * d_model)
    x = net.op("embedding", [words, table], width, 0, saves=[words])
    for i in range(layers):
        name = f"layer{i}"
        branch = attention(f"{name}.attention", norm(f"{name}.norm1", x))
        x = net.add(f"{name}.sum1", x, dropped(f"{name}.dropout1", branch))
        branch = mixed(f"{name}.mixer", norm(f"{name}.norm2", x))
        x = net.add(f"{name}.sum2", x, dropped(f"{name}.dropout2", branch))
    logits = linear("prediction", norm("norm", x), d_model, vocabulary)
    return net.training_step(logits, net.data("labels", _INDEX * tokens))

"""Habits of what is inside a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from zoo.habits.habit import WIDTH, Door, Steps, batch, habit, mlp, of, sgd, square, trained

__all__: list[str] = []


class Body(nn.Module):
    """A network, and code before or after it."""

    def __init__(self, then: Callable[[Body, Tensor], Tensor] | None = None, **parts: nn.Module) -> None:
        super().__init__()
        self.body, self.head, self.then, self.calls = mlp()[:-1], nn.Linear(WIDTH, 8), then, 0
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.head(hidden if self.then is None else self.then(self, hidden))


def _plainly(model: nn.Module, door: Door, **more: Any) -> Steps:
    yield from trained(model, door(model), **more)


@habit("frozen layers")
def frozen(door: Door) -> Steps:
    model = mlp()
    model[:4].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    yield from trained(model, door(model), optimizer)


@habit("layers that thaw during training")
def thawing(door: Door) -> Steps:
    model = mlp()
    model[:4].requires_grad_(False)
    run = door(model)
    for step, results in enumerate(trained(model, run, steps=4)):
        if step == 1:
            model.requires_grad_(True)
        yield results


@habit("tied weights")
def tied(door: Door) -> Steps:
    model = mlp()
    model[2].weight = model[0].weight
    yield from _plainly(model, door)


@habit("weight normalisation")
def weight_norm(door: Door) -> Steps:
    model = mlp()
    parametrizations.weight_norm(model[0])
    yield from _plainly(model, door)


@habit("spectral normalisation")
def spectral_norm(door: Door) -> Steps:
    model = mlp()
    parametrizations.spectral_norm(model[2])
    yield from _plainly(model, door)


@habit("orthogonal parametrisation")
def orthogonal(door: Door) -> Steps:
    model = mlp()
    parametrizations.orthogonal(model[2])
    yield from _plainly(model, door)


@habit("pruned weights")
def pruned(door: Door) -> Steps:
    model = mlp()
    prune.random_unstructured(model[0], "weight", 0.5)
    yield from _plainly(model, door)


@habit("dropout, the same masks as without a budget")
def dropout(door: Door) -> Steps:
    yield from _plainly(mlp(4, nn.GELU, lambda: nn.Dropout(0.2)), door)


@habit("batch normalisation")
def batch_norm(door: Door) -> Steps:
    yield from _plainly(mlp(4, nn.GELU, lambda: nn.BatchNorm1d(WIDTH)), door)


@habit("batch normalisation with momentum=None")
def cumulative_norm(door: Door) -> Steps:
    yield from _plainly(mlp(4, nn.GELU, lambda: nn.BatchNorm1d(WIDTH, momentum=None)), door, steps=4)


@habit("ops in place")
def in_place(door: Door) -> Steps:
    yield from _plainly(mlp(4, lambda: nn.ReLU(inplace=True)), door)


@habit("an activation changed in place by forward")
def changed(door: Door) -> Steps:
    yield from _plainly(Body(lambda _, y: y.mul(2).clamp_(-1, 1).add_(1)), door)


@habit("LSTM")
def lstm(door: Door) -> Steps:
    yield from _plainly(_Recurrent(nn.LSTM), door, call=_sequences)


@habit("GRU")
def gru(door: Door) -> Steps:
    yield from _plainly(_Recurrent(nn.GRU), door, call=_sequences)


@habit("an embedding with sparse gradients")
def sparse(door: Door) -> Steps:
    yield from _plainly(_Embedded(sparse=True), door, prepare=_words)


@habit("an embedding with padding")
def embedding(door: Door) -> Steps:
    yield from _plainly(_Embedded(padding_idx=0), door, prepare=_words)


@habit("a transformer with a causal mask")
def transformer(door: Door) -> Steps:
    yield from _plainly(_Transformer(), door, call=lambda run, x: run(x.view(16, 32, WIDTH)).view(512, 8))


@habit("checkpoint inside of the model")
def with_checkpoint(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        return checkpoint(self.block, y, use_reentrant=False)

    yield from _plainly(Body(then, block=mlp()[:-1]), door)


@habit("checkpoint inside of the model, reentrant")
def with_reentrant_checkpoint(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        return checkpoint(self.block, y, use_reentrant=True)

    yield from _plainly(Body(then, block=mlp()[:-1]), door)


@habit("a custom autograd.Function")
def custom_function(door: Door) -> Steps:
    yield from _plainly(Body(lambda _, y: _Clipped.apply(y)), door)


@habit("the model counts its calls")
def counter(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        self.calls += 1
        return y * (1.0 if self.calls > 2 else 0.5)

    yield from _plainly(Body(then), door, steps=12)


@habit("the model counts its calls in a buffer")
def buffer_counter(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        self.count += 1
        return y / self.count

    model = Body(then)
    model.register_buffer("count", torch.zeros(()))
    yield from _plainly(model, door)


@habit("a block called several times in forward")
def repeated(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        return self.block(self.block(self.block(y)))

    yield from _plainly(Body(then, block=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())), door)


@habit("print in forward")
def printing(door: Door) -> Steps:
    def then(_: Body, y: Tensor) -> Tensor:
        print("shape", tuple(y.shape))
        return y

    yield from _plainly(Body(then, block=mlp()[:-1]), door)


@habit(".item() in forward")
def item(door: Door) -> Steps:
    yield from _plainly(Body(lambda _, y: y / (1.0 + y.abs().max().item())), door)


@habit("a branch on data in forward")
def branch(door: Door) -> Steps:
    yield from _plainly(Body(lambda _, y: y if y.sum() > 1e9 else y * 0.5), door)


@habit("a random branch (stochastic depth)")
def stochastic_depth(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        return self.block(y) if random.random() < 0.5 else y

    yield from _plainly(Body(then, block=mlp()[:-1]), door, steps=8)


@habit("requires_grad set on an activation")
def activation_requires_grad(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        hidden = y.detach()
        hidden.requires_grad = True
        return self.block(hidden)

    yield from _plainly(Body(then, block=mlp()[:-1]), door)


@habit("an activation kept as an attribute")
def kept_activation(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        self.features = y
        return y

    model = Body(then)
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x), y) + model.features.square().mean()
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("numpy in forward")
def numpy_inside(door: Door) -> Steps:
    def then(_: Body, y: Tensor) -> Tensor:
        return y * float(y.detach().numpy().std())

    yield from _plainly(Body(then), door)


@habit("boolean masks, whose size depends on data")
def masks(door: Door) -> Steps:
    yield from _plainly(Body(lambda _, y: y * y[y > 0].mean()), door)


@habit("vmap inside of the model")
def vmapped(door: Door) -> Steps:
    yield from _plainly(Body(lambda _, y: torch.vmap(lambda row: row * row.softmax(0))(y)), door)


@habit("func.grad inside of the model")
def func_grad(door: Door) -> Steps:
    yield from _plainly(Body(lambda _, y: torch.func.grad(lambda z: z.sin().square().sum())(y)), door)


@habit("autograd.grad inside of the model")
def inner_grad(door: Door) -> Steps:
    def then(self: Body, y: Tensor) -> Tensor:
        energy = self.block(y).square().sum()
        return torch.autograd.grad(energy, y, create_graph=True)[0]

    yield from _plainly(Body(then, block=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())), door)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradient * (x.abs() < 2)


class _Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.body = cell(WIDTH, WIDTH, batch_first=True), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.cell(x)[0])


def _sequences(run: Any, x: Tensor) -> Tensor:
    return run(x.view(32, 16, WIDTH)).reshape(512, 8)


class _Embedded(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(100, WIDTH, **settings), mlp()

    def forward(self, words: Tensor) -> Tensor:
        return self.body(self.words(words))


def _words(x: Tensor) -> Tensor:
    return (x[:, 0] * 30).long() % 100


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(x, mask=mask, is_causal=True))

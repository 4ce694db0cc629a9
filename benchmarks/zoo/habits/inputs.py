"""Habits of what goes into a model and what comes out."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.habits.habit import BATCH, Door, Steps, batch, habit, mlp, of, sgd, square, trained

__all__: list[str] = []

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    """As Hugging Face's."""

    prediction: Tensor
    hidden: Tensor | None = None


class Net(nn.Module):
    """A network whose forward pass a habit writes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()


class WithDict(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"prediction": self.body(x), "norm": x.norm()}


class WithDataclass(Net):
    def forward(self, x: Tensor) -> Output:
        return Output(self.body(x))


class WithTuple(Net):
    def forward(self, x: Tensor) -> Pair:
        y = self.body(x)
        return Pair(y, y.sum(1))


class WithKeywords(Net):
    def forward(self, *, inputs: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        y = self.body(inputs) * scale
        return y if mask is None else y * mask


class WithBatch(Net):
    def forward(self, batch: dict[str, Any]) -> Tensor:
        return square(self.body(batch["x"]), batch["y"])


class WithList(Net):
    def forward(self, parts: Any) -> Tensor:
        return torch.cat([self.body(part) for part in parts])


class WithFloat(Net):
    def forward(self, x: Tensor, temperature: float) -> Tensor:
        return self.body(x) / temperature


class WithFlag(Net):
    def forward(self, x: Tensor, mode: str = "train", layers: int = 4) -> Tensor:
        y = self.body[: 2 * layers](x)
        return self.body[-1](y if mode == "train" else y.detach())


class WithUnused(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.body[:-1](x)
        return self.body[-1](hidden), hidden, hidden.exp()


class Sequences(nn.Module):
    """A small attention network for inputs ``[batch, length, 64]``."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.body(x + y).mean(1)


@habit("a dict as output")
def dict_output(door: Door) -> Steps:
    model = WithDict()
    yield from trained(model, door(model), call=lambda run, x: run(x)["prediction"])


@habit("a dataclass as output")
def dataclass_output(door: Door) -> Steps:
    model = WithDataclass()
    yield from trained(model, door(model), call=lambda run, x: run(x).prediction)


@habit("a named tuple as output")
def tuple_output(door: Door) -> Steps:
    model = WithTuple()
    yield from trained(model, door(model), call=lambda run, x: run(x).first + run(x).second[:, None])


@habit("keyword arguments only")
def keywords(door: Door) -> Steps:
    model = WithKeywords()
    yield from trained(model, door(model), call=lambda run, x: run(inputs=x, scale=0.5))


@habit("None as an input")
def none_input(door: Door) -> Steps:
    model = WithKeywords()
    yield from trained(model, door(model), call=lambda run, x: run(inputs=x, mask=None))


@habit("a dict as input, the loss in the model")
def dict_input(door: Door) -> Steps:
    model = WithBatch()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = run({"x": x, "y": y, "id": "abc"})
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("a list of tensors as input")
def list_input(door: Door) -> Steps:
    model = WithList()
    yield from trained(model, door(model), call=lambda run, x: run(list(x.chunk(4))))


@habit("a generator as input")
def generator_input(door: Door) -> Steps:
    model = WithList()
    yield from trained(model, door(model), call=lambda run, x: run(part for part in x.chunk(4)))


@habit("a last batch that is smaller")
def last_batch(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step, size in enumerate((BATCH, BATCH, 200, BATCH, 200, BATCH)):
        x, y = batch(step, size)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("sequences of twelve lengths")
def growing(door: Door) -> Steps:
    model = Sequences()
    run, optimizer = door(model), sgd(model)
    for step, length in enumerate((*range(8, 32, 2), 30)):
        x = torch.randn(32, length, 64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("a float argument, another one each step")
def float_argument(door: Door) -> Steps:
    model = WithFloat()
    run, optimizer = door(model), sgd(model)
    for step in range(12):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x, 1.0 + 0.1 * min(step, 10)), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("strings and ints as arguments")
def flags(door: Door) -> Steps:
    model = WithFlag()
    run = door(model)
    optimizer = sgd(model)
    for step, layers in enumerate((4, 3, 4)):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x, "train", layers=layers), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("inputs that require gradients")
def input_gradients(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        x.requires_grad_()
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss, x.grad])
        del loss, x  # the graph of the loss holds the inputs and their gradients


@habit("several outputs, some unused")
def unused_outputs(door: Door) -> Steps:
    model = WithUnused()
    yield from trained(model, door(model), call=lambda run, x: run(x)[0])


@habit("inputs that are not contiguous")
def strided(door: Door) -> Steps:
    model = mlp()
    yield from trained(model, door(model), prepare=lambda x: x.t().contiguous().t())


@habit("channels_last")
def channels_last(door: Door) -> Steps:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten()
    ).to(memory_format=torch.channels_last)
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x = torch.randn(16, 3, 24, 24, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = run(x.to(memory_format=torch.channels_last)).square().mean()
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("complex numbers")
def complex_numbers(door: Door) -> Steps:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(33, dtype=torch.complex64))
            self.body = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=64))

    model = Filter()
    yield from trained(model, door(model))


@habit("double precision by default")
def doubles(door: Door) -> Steps:
    model = mlp().double()
    yield from trained(model, door(model), prepare=Tensor.double, call=lambda run, x: run(x).float())

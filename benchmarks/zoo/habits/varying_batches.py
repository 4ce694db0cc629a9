"""Loops whose batches vary: lengths, sizes, resolutions, and many calls of one model."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.habits.habit import WIDTH, Door, square
from zoo.habits.varying import LEAST, STEPS, Ended, adamw, small_convolutions, small_images, varying

__all__: list[str] = []
"""The loops are found by their names in :data:`zoo.habits.varying.VARYING`."""


class _Text(nn.Module):
    """A small language model that computes its own loss, with or without a table of 512 positions."""

    def __init__(self, *, table: bool = False) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(64, WIDTH), None
        if table:
            self.positions = nn.Parameter(torch.randn(512, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, 64)

    def forward(self, words: Tensor) -> Tensor:
        y = self.words(words)
        if self.positions is not None:
            assert words.shape[1] <= 512
            y = y + self.positions[: words.shape[1]]
        y = self.layers(y)
        return F.cross_entropy(self.head(y[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def _texts(
    door: Door, ended: Ended, lengths: Iterable[int], sizes: Iterable[int] = (16,) * STEPS, **settings: bool
) -> None:
    model = _Text(**settings)
    optimizer = adamw(model)
    run = door(model, optimizer)
    for length, size in zip(lengths, sizes, strict=True):
        optimizer.zero_grad()
        loss = run(torch.randint(64, (size, length)))
        loss.backward()
        optimizer.step()
        ended(model, losses=[loss])


def _random_lengths(most: int = 64) -> list[int]:
    return [random.randint(most // 4, most) for _ in range(STEPS)]


@varying("lengths drawn at random", 0.6)
def random_lengths(door: Door, ended: Ended) -> None:
    _texts(door, ended, _random_lengths())


@varying("lengths drawn at random, a share", "60%")
def random_lengths_share(door: Door, ended: Ended) -> None:
    _texts(door, ended, _random_lengths())


@varying("lengths in four buckets", "60%")
def bucketed(door: Door, ended: Ended) -> None:
    _texts(door, ended, [-(-n // 16) * 16 for n in _random_lengths()])


@varying("batches sorted by length, the shortest first", "60%")
def sorted_lengths(door: Door, ended: Ended) -> None:
    _texts(door, ended, sorted(-(-n // 8) * 8 for n in _random_lengths()))


@varying("smaller last batches", "70%")
def last_batches(door: Door, ended: Ended) -> None:
    _texts(door, ended, [48] * STEPS, [16, 16, 11] * (STEPS // 3))


@varying("a table of 512 positions, lengths 128, then at most 100", 0.6)
def positions(door: Door, ended: Ended) -> None:
    _texts(door, ended, [128, *_random_lengths(100)[1:]], [8] * STEPS, table=True)


def _classified(
    door: Door, ended: Ended, model: nn.Module, batches: Iterable[Tensor], loss: Callable[[Tensor], Tensor]
) -> None:
    optimizer = adamw(model)
    run = door(model, optimizer)
    for images in batches:
        optimizer.zero_grad()
        value = loss(run(images))
        value.backward()
        optimizer.step()
        ended(model, losses=[value])


def _mean_square(y: Tensor) -> Tensor:
    return y.square().mean()


@varying("convolutions, batches of 8, then 4", 0.7)
def convolutions(door: Door, ended: Ended) -> None:
    batches = (small_images(size) for size in [8, 4] * (STEPS // 2))
    _classified(door, ended, small_convolutions(), batches, _mean_square)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers = (x for i in (inputs, *[outputs] * 3) for x in (nn.Conv2d(i, outputs, 3, padding=1), nn.ReLU()))
    return nn.Sequential(*layers)


class _UNet(nn.Module):
    """Three levels; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 16), _block(16, 32), _block(32, 64)])
        self.wider = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.up = nn.ModuleList([_block(64, 32), _block(32, 16)])
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if levels else x)
            levels.append(x)
        for wider, block, across in zip(self.wider, self.up, reversed(levels[:-1]), strict=True):
            x = block(torch.cat([across, wider(x)], 1))
        return self.head(x).square().mean()


@varying("a U-Net, a last batch of 4 after batches of 8", "60%")
def unet(door: Door, ended: Ended) -> None:
    batches = (small_images(size) for size in [8, 8, 4] * (STEPS // 3))
    _classified(door, ended, _UNet(), batches, lambda loss: loss)


@varying("resolutions that grow from 16 to 32", "70%")
def resolutions(door: Door, ended: Ended) -> None:
    batches = (small_images(8, 16 + 8 * (step // 10)) for step in range(STEPS))
    _classified(door, ended, small_convolutions(), batches, _mean_square)


class _Decoder(nn.Module):
    """Predicts the next state from all states so far, by attention."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, states: Tensor) -> Tensor:
        return self.layers(states)[:, -1:]


@varying("a decoder called 11 times with growing inputs", 0.7)
@varying("a decoder called 11 times with growing inputs, the least budget", LEAST)
def growing_decoder(door: Door, ended: Ended) -> None:
    model = _Decoder().double()  # uses of a parameter are summed in another order, which Adam amplifies
    optimizer = adamw(model)
    run = door(model, optimizer)
    for _ in range(STEPS):
        targets = torch.randn(32, 11, WIDTH, dtype=torch.double)
        optimizer.zero_grad()
        states = torch.zeros(32, 1, WIDTH, dtype=torch.double)
        for _ in range(11):
            states = torch.cat([states, run(states)], 1)
        loss = square(states[:, 1:], targets)
        loss.backward()
        optimizer.step()
        ended(model, losses=[loss])


class _Cell(nn.Module):
    """One step of a decoder with attention over a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        weights = (memory @ state.unsqueeze(-1)).softmax(1)
        state = self.cell(torch.cat([x, (weights * memory).sum(1)], 1), state)
        return self.head(state), state


@varying("a decoder called step by step", 0.85, reserve=2 * 8 * 64 * WIDTH * 4)  # targets, differences
def stepwise_decoder(door: Door, ended: Ended) -> None:
    model = _Cell()
    optimizer = adamw(model)
    run = door(model, optimizer)
    for _ in range(STEPS):
        targets, memory = torch.randn(8, 64, WIDTH), torch.randn(64, 16, WIDTH)
        optimizer.zero_grad()
        x = state = torch.zeros(64, WIDTH)
        loss = torch.zeros(())
        for target in targets:
            x, state = run(x, state, memory)
            loss = loss + square(x, target)
        loss.backward()
        optimizer.step()
        ended(model, losses=[loss])


@varying("multi-crop: two calls of other sizes (DINO)", "50%")
def multi_crop(door: Door, ended: Ended) -> None:
    student = small_convolutions()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = adamw(student)
    run = door(student, optimizer)
    for _ in range(STEPS):
        large, small = small_images(16, 32), small_images(48, 16)
        optimizer.zero_grad()
        with torch.no_grad():
            targets = teacher(large).softmax(-1)
        views = torch.cat([run(large), run(small)]).log_softmax(-1).unflatten(0, (8, 8))
        loss = -(targets.unflatten(0, (2, 1, 8)) * views).sum(-1).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                ours.mul_(0.99).add_(theirs, alpha=0.01)
        ended(student, teacher, losses=[loss])

"""Loops whose models vary: parts that train in turn, weights that are replaced, numbers that change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from zoo.habits.habit import OUTPUTS, WIDTH, Door, batch, mlp, square
from zoo.habits.varying import STEPS, Ended, adamw, small_convolutions, small_images, varying

__all__: list[str] = []
"""The loops are found by their names in :data:`zoo.habits.varying.VARYING`."""

_STATE = torch.get_rng_state().nbytes
_EMBEDDINGS = 64 * WIDTH * 4
"""Bytes of the embeddings of a batch; their list, their concatenation and its gradient are held."""


class _Encoder(nn.Module):
    """The mean state of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(1)


@varying(
    "embeddings without gradients, then each chunk again (GradCache)",
    0.5,
    reserve=5 * _STATE + 3 * _EMBEDDINGS,
)
def grad_cache(door: Door, ended: Ended) -> None:
    model = _Encoder()
    optimizer = adamw(model)
    run = door(model, optimizer)
    for _ in range(STEPS):
        chunks, states, found = torch.randn(64, 32, WIDTH).chunk(4), [], []
        optimizer.zero_grad()
        with torch.no_grad():
            for chunk in chunks:
                states.append(torch.get_rng_state())
                found.append(run(chunk))
        embeddings = torch.cat(found).requires_grad_()
        queries, keys = embeddings.chunk(2)
        loss = F.cross_entropy(queries @ keys.T, torch.arange(len(keys)))
        loss.backward()
        after = torch.get_rng_state()
        for chunk, state, gradient in zip(chunks, states, embeddings.grad.chunk(4), strict=True):
            torch.set_rng_state(state)
            (run(chunk) * gradient).sum().backward()
        torch.set_rng_state(after)
        optimizer.step()
        ended(model, losses=[loss])


def _generator() -> nn.Sequential:
    layers = (x for i in (3, 16, 16) for x in (nn.Conv2d(i, 16, 3, padding=1), nn.ReLU()))
    return nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1))


def _set_trained(trained: bool, *models: nn.Module) -> None:
    for model in models:
        model.requires_grad_(trained)


@varying("two generators and two discriminators (CycleGAN)", 0.8)
def cycle_gan(door: Door, ended: Ended) -> None:
    g, f, d_a, d_b = _generator(), _generator(), small_convolutions(), small_convolutions()
    makes, judges = adamw(g, f), adamw(d_a, d_b)
    run_g, run_f = door(g, makes), door(f, makes)
    judge_a, judge_b = door(d_a, judges), door(d_b, judges)
    for _ in range(STEPS):
        a, b = small_images(8), small_images(8)
        fake_b, fake_a = run_g(a), run_f(b)
        _set_trained(False, d_a, d_b)
        makes.zero_grad()
        cycle = (run_f(fake_b) - a).abs().mean() + (run_g(fake_a) - b).abs().mean()
        loss = cycle + (judge_a(fake_a) - 1).square().mean() + (judge_b(fake_b) - 1).square().mean()
        loss.backward()
        makes.step()
        _set_trained(True, d_a, d_b)
        judges.zero_grad()
        judged = []
        for judge, real, fake in ((judge_a, a, fake_a), (judge_b, b, fake_b)):
            judged.append((judge(real) - 1).square().mean() + judge(fake.detach()).square().mean())
            judged[-1].backward()
        judges.step()
        ended(g, f, d_a, d_b, losses=[loss, *judged])


@varying("a generator and a discriminator (GAN)", 0.8)
def gan(door: Door, ended: Ended) -> None:
    generator, discriminator = _generator(), small_convolutions()
    makes, judges = adamw(generator), adamw(discriminator)
    make, judge = door(generator, makes), door(discriminator, judges)
    for _ in range(STEPS):
        real, fake = small_images(8), make(small_images(8))
        judges.zero_grad()
        judged = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        judged.backward()
        judges.step()
        makes.zero_grad()
        made = F.softplus(-judge(fake)).mean()
        made.backward()
        makes.step()
        ended(generator, discriminator, losses=[judged, made])


class _MoCo(nn.Module):
    """A query and a key encoder, which follows the former, and a queue of earlier keys."""

    def __init__(self, follow: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.query, self.follow = mlp(12), follow
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(OUTPUTS, 256), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        q = F.normalize(self.query(queries))
        with torch.no_grad():
            for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
                self.follow(key, query)
            k = F.normalize(self.key(keys))
        positive, negative = (q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()
        with torch.no_grad():
            at = int(self.pointer)
            self.queue[:, at : at + len(k)] = k.T
            self.pointer[0] = (at + len(k)) % self.queue.shape[1]
        return torch.cat([positive, negative], 1) / 0.07


def _replaced(key: nn.Parameter, query: nn.Parameter) -> None:
    key.data = key.data * 0.99 + query.data * 0.01


def _in_place(key: nn.Parameter, query: nn.Parameter) -> None:
    key.data.mul_(0.99).add_(query.data, alpha=0.01)


def _moco(door: Door, ended: Ended, follow: Callable[[Any, Any], None]) -> None:
    model = _MoCo(follow).double()  # as for the decoder; a temperature of 0.07 amplifies rounding, too
    optimizer = adamw(model.query)
    run = door(model, optimizer)
    for step in range(STEPS):
        x = batch(step, 128)[0].double()
        optimizer.zero_grad()
        logits = run(x, x + 0.1 * torch.randn_like(x))
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        loss.backward()
        optimizer.step()
        ended(model, losses=[loss])


@varying("MoCo, key.data = …", 0.8)
def moco(door: Door, ended: Ended) -> None:
    _moco(door, ended, _replaced)


@varying("MoCo, key.data in place", 0.8)
def moco_in_place(door: Door, ended: Ended) -> None:
    _moco(door, ended, _in_place)


class _Experts(nn.Module):
    """A mixture of four experts, each of which gets its tokens in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.router, self.last = mlp(2)[:-1], nn.Linear(WIDTH, 4), nn.Linear(WIDTH, OUTPUTS)
        self.experts = nn.ModuleList(mlp(1)[:-1] for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weights, chosen = self.router(x).softmax(-1).max(-1)
        order, counts = chosen.argsort(), chosen.bincount(minlength=4).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, x[order].split(counts), strict=True)]
        return self.last(torch.cat(parts)[order.argsort()] * weights.unsqueeze(-1))


def _batches(door: Door, ended: Ended, model: nn.Module, before: Callable[[int], object]) -> None:
    optimizer = adamw(model)
    run = door(model, optimizer)
    for step in range(STEPS):
        before(step)
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        optimizer.step()
        ended(model, losses=[loss])


@varying("a mixture of experts that sorts tokens", 0.8)
def experts(door: Door, ended: Ended) -> None:
    _batches(door, ended, _Experts(), lambda _: None)


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = mlp()[:-1], nn.ModuleList(mlp(1) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.body(x)
        return [head(x) for head in self.heads]


@varying("three heads, a loss for one of them in turn", 0.7)
def heads(door: Door, ended: Ended) -> None:
    model = _Heads()
    optimizer = adamw(model)
    run = door(model, optimizer)
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x)[step % 3], y)
        loss.backward()
        optimizer.step()
        ended(model, losses=[loss])


class _LoRA(nn.Module):
    """A frozen layer, and a product of two narrow ones beside it that can be switched off."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.on = layer.requires_grad_(False), True
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x)) if self.on else self.layer(x)


@varying("LoRA on and off", "70%")
def lora(door: Door, ended: Ended) -> None:
    parts = [_LoRA(part) if isinstance(part, nn.Linear) else part for part in mlp()[:-1]]
    model = nn.Sequential(nn.LayerNorm(WIDTH), *parts, nn.Linear(WIDTH, OUTPUTS))

    def switch(step: int) -> None:
        for part in model:
            if isinstance(part, _LoRA):
                part.on = step % 2 == 0

    _batches(door, ended, model, switch)


@varying("layers frozen for half the steps, then thawed", "70%", changes=(10,))
def frozen(door: Door, ended: Ended) -> None:
    model = mlp()
    _batches(door, ended, model, lambda step: model[:4].requires_grad_(not 10 <= step < 20))


@varying("dropout that decreases in each step", 0.7)
def annealed_dropout(door: Door, ended: Ended) -> None:
    drop = nn.Dropout(0.5)
    model = mlp(4, nn.GELU, lambda: drop)

    def anneal(step: int) -> None:
        drop.p = 0.5 * (1 - step / STEPS)

    _batches(door, ended, model, anneal)


class _Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.temperature = mlp(), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) / self.temperature).softmax(-1)


@varying("a temperature that decreases in each step", 0.7)
def temperature(door: Door, ended: Ended) -> None:
    model = _Tempered()

    def anneal(step: int) -> None:
        model.temperature = 2.0 - step / STEPS

    _batches(door, ended, model, anneal)


def _gradients(run: Any, weights: Mapping[str, Tensor], seed: int) -> tuple[Tensor, list[Tensor]]:
    x, y = batch(seed)
    loss = square(functional_call(run, weights, (x,)), y)
    return loss.detach(), list(torch.autograd.grad(loss, list(weights.values())))


def _adapted(run: Any, weights: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The weights after one step."""
    _, found = _gradients(run, weights, seed)
    return {
        name: (weight - 0.01 * gradient).detach().requires_grad_()
        for (name, weight), gradient in zip(weights.items(), found, strict=True)
    }


def _learned(run: Any, model: nn.Module, seed: int) -> Tensor:
    """The loss after two inner steps, whose gradient is added to those of the model."""
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(2):
        weights = _adapted(run, weights, seed)
    loss, found = _gradients(run, weights, 1000 + seed)
    for p, gradient in zip(model.parameters(), found, strict=True):
        p.grad = gradient if p.grad is None else p.grad + gradient
    return loss


@varying("inner steps on functional weights (first-order MAML)", 0.7)
def maml(door: Door, ended: Ended) -> None:
    model = mlp()
    optimizer = adamw(model)
    run = door(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [_learned(run, model, seed) for seed in (2 * step, 2 * step + 1)]
        optimizer.step()
        ended(model, losses=losses)

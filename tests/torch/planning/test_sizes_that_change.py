"""Sizes that change within a plan: the plan holds up to the largest that it was made for, to the bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from checkmate.plugins import Solver
from checkmate_torch import compile, enable, memory_meter, plan

LARGEST = 48


class Attends(nn.Module):
    """Batch and length enter as sizes of views, as divisors, as a mask's shape, and as a number returned."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 20)
        self.drop, self.norm = nn.Dropout(0.2), nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor, scale: int = 1) -> tuple[torch.Tensor, int]:
        batch, length = tokens.shape
        q, k, v = self.mix(self.drop(self.embed(tokens))).chunk(3, -1)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(1, 2) / length * scale).masked_fill(~mask, -1e9)
        mixed = self.norm((scores.softmax(-1) @ v).reshape(batch * length, 16)).tanh()
        return self.head(mixed).view(batch, length, 20)[:, : length - 1], batch * length


def step(module: nn.Module, batch: int, length: int) -> list[torch.Tensor]:
    torch.manual_seed(batch * 100 + length)
    tokens = torch.randint(20, (batch, length))
    module.zero_grad()
    logits, count = module(tokens)
    loss = logits.square().sum() / count
    loss.backward()
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return [loss.detach(), logits.detach(), *gradients, torch.get_rng_state()]


def fresh() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = Attends()
    return plain, copy.deepcopy(plain)


SIZES = [(8, 32), (4, 17), (7, 32), (2, 30), (7, 31)]


@pytest.mark.parametrize("dynamic", [True, None])
def test_one_plan_for_all_smaller_sizes(dynamic: bool | None, forgetful: Solver) -> None:
    plain, module = fresh()
    compiled = compile(module, 2**40, dynamic=dynamic, solver=forgetful, cost_model="flops")
    for sizes in SIZES:
        for mine, theirs in zip(step(compiled, *sizes), step(plain, *sizes), strict=True):
            assert torch.equal(mine, theirs)
    # None: a plan for the first shape alone, then one for all sizes up to the largest so far.
    assert len(compiled.plans) == (1 if dynamic else 2)


@pytest.mark.measured
def test_larger_sizes_get_a_plan_of_their_own_and_none_exceeds_its_budget() -> None:
    _, module = fresh()
    compiled = compile(module, "100%", dynamic=True, solver="evict-belady", loss_bytes=0)
    for batch, length, plans in [(4, 24, 1), (16, LARGEST, 2), (16, 40, 2), (3, 20, 2), (9, LARGEST, 2)]:
        step(compiled, batch, length)
        assert len(compiled.plans) == plans
        module.zero_grad()
        tokens = torch.randint(20, (batch, length))
        with memory_meter(module, tokens) as meter:
            compiled(tokens)[0].sum().backward()
        assert meter.peak <= compiled.plans[-1].solution.peak
        if (batch, length) == (16, LARGEST):
            assert meter.peak >= 0.8 * compiled.plans[-1].solution.peak


def test_sizes_that_grow_use_up_no_plans(forgetful: Solver) -> None:
    plain, module = fresh()
    compiled = compile(module, 2**40, max_plans=3, strict=True, solver=forgetful, cost_model="flops")
    for length in range(8, 20, 2):
        for mine, theirs in zip(step(compiled, 2, length), step(plain, 2, length), strict=True):
            assert torch.equal(mine, theirs)
    assert len(compiled.plans) <= 3


def test_a_declared_maximum_is_planned_for_at_once() -> None:
    _, module = fresh()
    compiled = compile(module, "100%", dynamic=None, solver="evict-belady", loss_bytes=0)
    peaks = []
    for batch in (2, 16, 5):
        tokens = torch.randint(20, (batch, 32))
        torch._dynamo.mark_dynamic(tokens, 0, min=2, max=16)  # noqa: TID251 - as users do
        compiled(tokens)[0].sum().backward()
        module.zero_grad()
        with memory_meter(module, tokens) as meter:
            compiled(tokens)[0].sum().backward()
        module.zero_grad()
        peaks.append(meter.peak)
    (plan,) = compiled.plans
    assert 0.8 * plan.solution.peak <= max(peaks) == peaks[1] <= plan.solution.peak


def test_a_growing_number_needs_no_new_plan(forgetful: Solver) -> None:
    """Only sizes of tensors bound a plan; other numbers are arguments."""
    plain, module = fresh()
    compiled = compile(module, 2**40, dynamic=True, solver=forgetful)
    tokens = torch.randint(20, (4, 16))
    for scale in (3, 5, 9):
        outputs = []
        for run in (plain, compiled):
            torch.manual_seed(scale)
            outputs.append(run(tokens, scale)[0])
        assert torch.equal(*outputs)
    assert len(compiled.plans) == 1


class Convolutions(nn.Sequential):
    """PyTorch guards ``batch < 16`` in the kernels of a CPU."""

    def __init__(self) -> None:
        layers = [layer for _ in range(3) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
        super().__init__(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), *layers)

    def step(self, batch: int) -> None:
        self(torch.ones(batch, 3, 16, 16)).square().mean().backward()
        self.zero_grad()


class Positions(nn.Module):
    """A table of positions that is longer than any text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.table = nn.Embedding(9, 32), nn.Parameter(torch.zeros(512, 32))
        self.mix = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Tanh())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        assert tokens.shape[1] <= 512
        return self.mix(self.embed(tokens) + self.table[: tokens.shape[1]]).square().mean()

    def step(self, length: int) -> None:
        self(torch.zeros(4, length, dtype=torch.long)).backward()
        self.zero_grad()


SETTINGS: dict[str, Any] = {"cost_model": "flops", "workspaces": False}


@pytest.mark.parametrize(("model", "sizes"), [(Convolutions, (8, 4, 6)), (Positions, (128, 100, 90))])
@pytest.mark.parametrize("kind", ["bytes", "share"])
def test_a_smaller_size_keeps_the_budget_of_the_largest(
    model: type[Any], sizes: tuple[int, ...], kind: str
) -> None:
    """The range that PyTorch's guards leave to a size is no size that was seen."""
    module = model()
    budget = "85%" if kind == "share" else budget_of(model, sizes[0], "85%")
    training = enable(module, budget, **SETTINGS)
    for size in sizes:
        module.step(size)
    first, second = training.plans
    assert second.solution.problem.budget == first.solution.problem.budget
    assert second.plain_bytes == pytest.approx(first.plain_bytes, rel=0.02)


def budget_of(model: type[Any], size: int, share: str) -> int:
    module = model()
    training = enable(module, share, **SETTINGS)
    module.step(size)
    return training.plans[-1].solution.problem.budget


def test_a_share_grows_with_the_largest_step_and_never_falls() -> None:
    module = Convolutions()
    training = enable(module, "90%", **SETTINGS)
    budgets = []
    for batch in (4, 8, 3):
        module.step(batch)
        budgets.append(training.plans[-1].solution.problem.budget)
    for layer in list(module)[:-2]:
        layer.requires_grad_(False)
    module.step(8)
    assert training.plans[-1].plain_bytes < training.plans[-2].plain_bytes
    budgets.append(training.plans[-1].solution.problem.budget)
    alone = [budget_of(Convolutions, batch, "90%") for batch in (4, 8)]
    assert budgets[0] == alone[0]
    assert budgets[1] == pytest.approx(alone[1], rel=0.02)
    assert budgets[1:] == [budgets[1]] * 3


def test_sizes_that_were_never_seen_together_are_not_planned_for() -> None:
    """Batches of a constant number of tokens: their largest batch never comes with the largest length."""
    module = Positions()
    training = enable(module, "90%", **SETTINGS)
    for batch, length in [(32, 16), (8, 64), (2, 256), (32, 16), (7, 64)]:
        module(torch.zeros(batch, length, dtype=torch.long)).backward()
        module.zero_grad()
    peaks = [plan.plain_bytes for plan in training.plans]
    assert len(peaks) == 3
    assert max(peaks) <= 1.1 * min(peaks)


def test_a_share_is_one_of_the_plain_step_in_plans_and_in_training() -> None:
    module, tokens = Positions(), torch.zeros(4, 64, dtype=torch.long)
    module.mix.extend(nn.Dropout(0.1) for _ in range(9))  # replays need their random states
    ahead = plan(module, tokens, "90%", **SETTINGS)
    training = enable(module, "90%", **SETTINGS)
    module(tokens).backward()
    budget = training.plans[-1].solution.problem.budget
    assert budget == pytest.approx(ahead.problem.budget, rel=0.01)


class Deepens(nn.Module):
    """Layers that are switched on later need more bytes for the same batch."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.first = False, nn.Linear(64, 64)
        self.others = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).sin()
        return (self.others(x) if self.deep else x).square().mean()


def test_a_graph_for_which_larger_sizes_do_not_fit_is_planned_for_those_of_the_call() -> None:
    module = Deepens()
    training = enable(module, 1_400_000, dynamic=True, **SETTINGS)
    module(torch.ones(1024, 64)).backward()
    module.zero_grad()
    module.deep = True
    module(torch.ones(32, 64)).backward()
    assert len(training.plans) == 2


def test_what_may_be_overwritten_does_not_depend_on_whether_sizes_may_change() -> None:
    n_reused = []
    for dynamic in (False, True):
        module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid())
        training = enable(module, "100%", dynamic=dynamic, **SETTINGS)
        module(torch.ones(8, 16)).sum().backward()
        graph = training.plans[-1].solution.problem.graph
        n_reused.append(sum(len(op.reuses) for op in graph.ops))
    assert n_reused[0] == n_reused[1] > 0

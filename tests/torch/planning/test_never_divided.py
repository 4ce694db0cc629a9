"""What is never divided trains as before, or is refused as before; what may be divided beside it is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.checkpoint import checkpoint

from checkmate import InfeasibleBudgetError
from checkmate_torch import compile, compile_step, enable, memory_meter

ROOMY = 2**40
WORDS, WIDTH = 512, 16
FAST: dict[str, Any] = {"cost_model": "flops", "time_limit": 1.0, "cache": False}


class Language(nn.Module):
    """A small language model with the loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2))
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)

    def body(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = h + block(h)
        return h

    def loss(self, scores: Tensor, x: Tensor) -> Tensor:
        return cross_entropy(scores.flatten(0, -2), x.flatten())

    def forward(self, x: Tensor) -> Any:
        return self.loss(self.scores(self.body(x)), x)


class Dropping(Language):
    """Drops scores at random."""

    def loss(self, scores: Tensor, x: Tensor) -> Tensor:
        return super().loss(dropout(scores, 0.1), x)


class Selecting(Language):
    """Scores only some tokens: how many depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.scores(self.body(x)[x % 4 > 0]), x[x % 4 > 0])


class Normed(Language):
    """Normalizes scores over all tokens, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WORDS)

    def loss(self, scores: Tensor, x: Tensor) -> Tensor:
        return super().loss(self.norm(scores.flatten(0, 1)), x)


class Returning(Language):
    """Returns its scores, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(self.body(x))
        return self.loss(scores, x), scores.detach()


class Watched(Language):
    """A hook changes the gradient of the scores."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(self.body(x))
        scores.register_hook(lambda g: 2 * g)
        return self.loss(scores, x)


class Checkpointed(Language):
    """Checkpoints its blocks, or its loss."""

    def body(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return h


class CheckpointedLoss(Language):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda h: self.loss(self.scores(h), x), self.body(x), use_reentrant=False)


def made(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module, Tensor]:
    """Two equal models and a batch."""
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model), torch.randint(WORDS, (2, 64))


def trained(run: Callable[[Tensor], Any], model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    loss = run(x)
    (loss if isinstance(loss, Tensor) else loss[0]).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def assert_near(found: list[Tensor], expected: list[Tensor], within: float = 1e-6) -> None:
    """Relative to the norm of each tensor."""
    assert len(found) == len(expected) > 0
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= within * y.norm()


def cut_targets(plan: Any) -> set[str]:
    return {str(node.target) for node in plan.traced.nodes if node is not None and "piece" in node.meta}


@pytest.mark.parametrize("make", [Dropping, Selecting, Normed, Returning])
def test_scores_stay_whole(make: Callable[[], nn.Module]) -> None:
    model, plain, x = made(make)
    with pytest.raises(InfeasibleBudgetError):
        compile(model, "40%", **FAST)(x)
    compiled = compile(model, ROOMY, **FAST)
    found, expected = trained(compiled, model, x), trained(plain, plain, x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not compiled.plans[0].divided


@pytest.mark.parametrize("make", [Dropping, Normed])
def test_random_ops_and_ops_with_state_are_never_cut(make: Callable[[], nn.Module]) -> None:
    model, plain, x = made(make)
    compiled = compile(model, ROOMY, split={"mm": 4}, **FAST)
    assert_near(trained(compiled, model, x), trained(plain, plain, x))
    (plan,) = compiled.plans
    assert plan.divided
    assert not any("dropout" in target or "batch_norm" in target for target in cut_targets(plan))


@pytest.mark.parametrize("make", [Watched, Checkpointed, CheckpointedLoss])
def test_hooks_and_checkpoints_are_in_pieces_as_well(make: Callable[[], nn.Module]) -> None:
    model, plain, x = made(make)
    compiled = compile(model, "60%", **FAST)
    assert_near(trained(compiled, model, x), trained(plain, plain, x))
    assert compiled.plans[0].divided


def test_a_hook_of_a_module_may_change_the_scores() -> None:
    model, plain, x = made(Language)
    for each in (model, plain):
        each.scores.register_forward_hook(lambda module, args, scores: 1.5 * scores)
    compiled = compile(model, "60%", **FAST)
    assert_near(trained(compiled, model, x), trained(plain, plain, x))
    assert compiled.plans[0].divided


def test_a_second_backward_pass_runs_the_pieces_again() -> None:
    model, plain, x = made(Language)
    enable(model, "60%", **FAST)
    for each in (model, plain):
        loss = each(x)
        loss.backward(retain_graph=True)
        loss.backward()
    assert_near([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])


@pytest.mark.parametrize("dynamic", [None, True])
def test_lengths_that_change_train_within_the_budget(dynamic: bool | None) -> None:
    model, plain, _ = made(Language)
    compiled = compile(model, "60%", dynamic=dynamic, **FAST)
    for length in (64, 48, 33, 64):
        x = torch.randint(WORDS, (2, length))
        assert_near(trained(compiled, model, x), trained(plain, plain, x))
        model.zero_grad()
        with memory_meter(model, x) as meter:
            compiled(x).backward()
        assert meter.peak <= max(plan.solution.problem.budget for plan in compiled.plans)
    assert all(plan.divided for plan in compiled.plans)


def test_micro_batches_and_clipped_gradients_are_right() -> None:
    model, plain, x = made(Language)
    mine, theirs = (torch.optim.SGD(each.parameters(), lr=1.0) for each in (model, plain))
    settings: dict[str, Any] = {"accumulate": 2, "max_norm": 0.1, **FAST}
    step = compile_step(model, lambda model, x: model(x), mine, budget="70%", **settings)
    for k in range(4):
        step(x)
        plain(x).backward()
        if k % 2:
            nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            theirs.step()
            theirs.zero_grad()
    assert_near(list(model.parameters()), list(plain.parameters()))
    assert step.plans[0].divided

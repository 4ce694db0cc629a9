"""Losses of language models in pieces: values and gradients are those of plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from checkmate_torch import compile

ROOMY = 2**40
WORDS, WIDTH, BATCH, LENGTH, PIECES = 384, 16, 2, 64, 4
IGNORED = -100
FAST: dict[str, Any] = {"cost_model": "flops", "time_limit": 1.0, "cache": False}
Loss = Callable[[Tensor, Tensor], Tensor]


class Language(nn.Module):
    """Scores of all words, and a loss of them."""

    def __init__(self, loss: Loss, *, bias: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH), nn.LayerNorm(WIDTH))
        self.scores = nn.Linear(WIDTH, WORDS, bias=bias)
        self.loss = loss

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.scores(self.body(self.words(x))), targets)


def flat(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return scores.flatten(0, 1), targets.flatten()


def weights_of_words(scores: Tensor) -> Tensor:
    return torch.linspace(0.5, 2, WORDS, dtype=scores.dtype)


def padded_by_the_model(scores: Tensor, targets: Tensor) -> Tensor:
    """As transformers: targets are moved by one, the last one is ignored, scores are in single precision."""
    moved = pad(targets, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return cross_entropy(*flat(scores.to(torch.promote_types(scores.dtype, torch.float32)), moved))


def with_squared_logarithms(scores: Tensor, targets: Tensor) -> Tensor:
    """A z-loss keeps the sum of exponentials near 1."""
    return cross_entropy(*flat(scores, targets)) + 0.01 * scores.logsumexp(-1).square().mean()


def capped(scores: Tensor, targets: Tensor) -> Tensor:
    """As Gemma 2."""
    return cross_entropy(*flat(3 * torch.tanh(scores / 3), targets))


def gathered(scores: Tensor, targets: Tensor) -> Tensor:
    return -scores.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None]).mean()


def by_hand(scores: Tensor, targets: Tensor) -> Tensor:
    rows, words = flat(scores, targets.clamp(min=0))
    return (rows.logsumexp(-1) - rows.gather(1, words[:, None])[:, 0]).mean()


def of_real_words(scores: Tensor, targets: Tensor) -> Tensor:
    """The vocabulary is padded to a round number; its last words are never right."""
    return cross_entropy(*flat(scores.masked_fill(torch.arange(WORDS) >= WORDS - 40, -torch.inf), targets))


def weighted_by_token(scores: Tensor, targets: Tensor) -> Tensor:
    weight = torch.linspace(0, 1, targets.numel(), dtype=scores.dtype)
    return (cross_entropy(*flat(scores, targets), reduction="none") * weight).sum() / weight.sum()


def focal(scores: Tensor, targets: Tensor) -> Tensor:
    each = cross_entropy(*flat(scores, targets), reduction="none")
    return ((1 - torch.exp(-each)).square() * each).mean()


def of_soft_targets(scores: Tensor, targets: Tensor) -> Tensor:
    """Of smoother scores, as in distillation."""
    del targets
    return cross_entropy(scores.flatten(0, 1), (scores.detach() / 2).flatten(0, 1).softmax(-1))


def turned(scores: Tensor, targets: Tensor) -> Tensor:
    """Words in the second dimension: tokens are no neighbouring dimensions."""
    return cross_entropy(scores.transpose(1, 2), targets)


def moved_by_slices(scores: Tensor, targets: Tensor) -> Tensor:
    """The scores of the last token are dropped: those before and after have different numbers of rows."""
    return cross_entropy(*flat(scores[:, :-1].contiguous(), targets[:, 1:]))


LOSSES: dict[str, Loss] = {
    "mean": lambda scores, targets: cross_entropy(*flat(scores, targets)),
    "sum": lambda scores, targets: cross_entropy(*flat(scores, targets), reduction="sum"),
    "sum by items": lambda scores, targets: cross_entropy(*flat(scores, targets), reduction="sum") / 77,
    "label smoothing": lambda scores, targets: cross_entropy(*flat(scores, targets), label_smoothing=0.1),
    "smooth sum": lambda scores, targets: cross_entropy(
        *flat(scores, targets), label_smoothing=0.1, reduction="sum"
    ),
    "class weights": lambda scores, targets: cross_entropy(*flat(scores, targets), weights_of_words(scores)),
    "weights and smoothing": lambda scores, targets: cross_entropy(
        *flat(scores, targets), weights_of_words(scores), label_smoothing=0.1
    ),
    "padded by the model": padded_by_the_model,
    "z-loss": with_squared_logarithms,
    "capped": capped,
    "gathered": gathered,
    "by hand": by_hand,
    "padded vocabulary": of_real_words,
    "weighted by token": weighted_by_token,
    "focal": focal,
    "soft targets": of_soft_targets,
}
OTHERS: dict[str, Loss] = {"turned": turned, "moved by slices": moved_by_slices}
"""Losses whose scores stay whole."""
TARGETS: dict[str, Callable[[Tensor], object]] = {
    "all count": lambda targets: None,
    "some ignored": lambda targets: targets[:, ::3].fill_(IGNORED),
    "a piece ignored": lambda targets: targets[0, : LENGTH // 2].fill_(IGNORED),
}


def batch(ignore: str = "all count") -> tuple[Tensor, Tensor]:
    x, targets = torch.randint(WORDS - 40, (2, BATCH, LENGTH))
    TARGETS[ignore](targets)
    return x, targets


def trained(
    loss: Loss, *given: Tensor, pieces: int = PIECES, **options: Any
) -> tuple[list[Tensor], list[Tensor], Any]:
    """Loss and gradients in pieces, those of plain PyTorch, and the plan."""
    torch.manual_seed(0)
    model = Language(loss, **options)
    plain = copy.deepcopy(model)
    compiled = compile(model, ROOMY, split={"mm": pieces}, **FAST)
    found = []
    for run, each in ((compiled, model), (plain, plain)):
        value = run(*given)
        value.backward()
        found.append([value.detach(), *(p.grad for p in each.parameters())])
    return found[0], found[1], compiled.plans[0]


def assert_near(found: list[Tensor], expected: list[Tensor], within: float = 1e-6) -> None:
    """Relative to the norm of each tensor."""
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= within * y.norm()


def largest_made(plan: Any) -> int:
    """Numbers in the largest tensor that an op makes."""
    tensors = (y for node in plan.traced.nodes if node for y in _in(node.meta["val"]))
    return max(y.numel() for y in tensors)


def _in(value: Any) -> list[Tensor]:
    return [y for y in (value if isinstance(value, tuple | list) else [value]) if isinstance(y, Tensor)]


@pytest.mark.parametrize("name", LOSSES)
def test_the_scores_are_in_pieces_and_gradients_are_right(name: str) -> None:
    torch.manual_seed(1)
    found, expected, plan = trained(LOSSES[name], *batch("some ignored"))
    assert_near(found, expected)
    assert largest_made(plan) * PIECES == BATCH * LENGTH * WORDS


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_right_as_well(name: str) -> None:
    torch.manual_seed(1)
    found, expected, plan = trained(OTHERS[name], *batch("some ignored"))
    assert_near(found, expected)
    assert largest_made(plan) * 2 >= BATCH * LENGTH * WORDS


@pytest.mark.parametrize("name", ["mean", "label smoothing", "class weights", "padded by the model"])
def test_a_piece_may_have_no_target_that_counts(name: str) -> None:
    torch.manual_seed(1)
    found, expected, _ = trained(LOSSES[name], *batch("a piece ignored"))
    assert_near(found, expected)


@pytest.mark.parametrize("name", ["mean", "sum", "class weights"])
def test_without_any_target_values_are_those_of_pytorch(name: str) -> None:
    x, targets = batch()
    found, expected, _ = trained(LOSSES[name], x, targets.fill_(IGNORED))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)


def test_tied_weights_have_one_gradient() -> None:
    torch.manual_seed(0)
    model = Language(LOSSES["mean"])
    model.scores.weight = model.words.weight
    plain = copy.deepcopy(model)
    assert plain.scores.weight is plain.words.weight
    given = batch()
    compile(model, ROOMY, split={"mm": PIECES}, **FAST)(*given).backward()
    plain(*given).backward()
    assert_near([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])


def test_a_bias_of_scores_is_a_sum_over_pieces() -> None:
    torch.manual_seed(1)
    given = batch()
    torch.manual_seed(0)
    model = Language(LOSSES["mean"], bias=True)
    plain = copy.deepcopy(model)
    compiled = compile(model, ROOMY, split={"_log_softmax": PIECES}, **FAST)
    compiled(*given).backward()
    plain(*given).backward()
    assert_near([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    assert largest_made(compiled.plans[0]) * PIECES == BATCH * LENGTH * WORDS


def error(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((x.double() - y).norm() / y.norm()) for x, y in zip(found, exact, strict=True)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixed", [False, True], ids=["weights", "autocast"])
def test_sums_over_pieces_in_half_precision_are_as_exact_as_those_of_the_whole(
    dtype: torch.dtype, mixed: bool
) -> None:
    torch.manual_seed(0)
    model = Language(padded_by_the_model, bias=True)
    model = model if mixed else model.to(dtype)
    plain, exact, given = copy.deepcopy(model), copy.deepcopy(model).double(), batch()
    compiled = compile(model, ROOMY, split={"_log_softmax": PIECES}, **FAST)
    exact(*given).backward()
    with torch.autocast("cpu", dtype, enabled=mixed):
        compiled(*given).backward()
        plain(*given).backward()
    assert largest_made(compiled.plans[0]) * PIECES == BATCH * LENGTH * WORDS
    mine, theirs, right = ([p.grad for p in each.parameters()] for each in (model, plain, exact))
    pairs = zip(error(mine, right), error(theirs, right), strict=True)
    assert all(ours <= 1.001 * others for ours, others in pairs)

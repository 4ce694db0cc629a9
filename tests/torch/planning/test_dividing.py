"""Steps in pieces keep budgets below the largest working set of an op; gradients are equal up to rounding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import checkmate_torch
from checkmate import InfeasibleBudgetError
from checkmate_torch import compile, compile_step, enable, memory_meter

ROOMY = 2**40
WORDS, WIDTH = 512, 16
FAST: dict[str, Any] = {"cost_model": "flops", "time_limit": 1.0, "cache": False}


class Language(nn.Module):
    """A small language model with the loss inside: scores of all words are by far its largest tensor."""

    def __init__(self, words: int = WORDS) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH), nn.LayerNorm(WIDTH))
        self.scores = nn.Linear(WIDTH, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(self.body(self.words(x)))
        return functional.cross_entropy(scores.flatten(0, 1), x.flatten())


def made(dtype: torch.dtype = torch.float32, length: int = 128) -> tuple[Language, Language, Tensor]:
    """Two equal models and a batch."""
    torch.manual_seed(0)
    model = Language().to(dtype)
    return model, copy.deepcopy(model), torch.randint(WORDS, (2, length))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def assert_near(found: list[Tensor], expected: list[Tensor], within: float) -> None:
    """Relative to the norm of each tensor."""
    assert len(found) == len(expected) > 0
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= within * y.norm()


PRECISIONS = pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["single", "double"]
)


@PRECISIONS
def test_enabled_models_train_below_the_least_budget_of_whole_ops(dtype: torch.dtype, within: float) -> None:
    model, plain, x = made(dtype)
    training = enable(model, "55%", **FAST)
    loss, expected = model(x), plain(x)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=within, atol=0)
    assert_near(gradients(model), gradients(plain), within)
    assert "pieces" in str(training.report())


@PRECISIONS
def test_whole_steps_train_below_the_least_budget_of_whole_ops(dtype: torch.dtype, within: float) -> None:
    model, plain, x = made(dtype)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, plain)]
    step = compile_step(model, lambda model, x: model(x), optimizers[0], budget="55%", **FAST)
    for _ in range(3):
        loss, expected = step(x), plain(x)
        expected.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        torch.testing.assert_close(loss, expected.detach(), rtol=3 * within, atol=0)
    assert step.plans[0].divided
    assert_near(list(model.parameters()), list(plain.parameters()), 3 * within)


@pytest.mark.parametrize("budget", ["55%", "45%"])
def test_the_peak_is_as_predicted_and_within_the_budget(budget: str) -> None:
    model, _, x = made(length=512)
    compiled = compile(model, budget, **FAST)
    compiled(x).backward()
    model.zero_grad()
    with memory_meter(model, x) as meter:
        compiled(x).backward()
    plan = compiled.plans[0]
    assert plan.divided
    assert meter.peak <= plan.solution.problem.budget
    assert meter.peak == pytest.approx(plan.peak, rel=0.01)


def test_without_pieces_the_budget_is_infeasible() -> None:
    model, _, x = made()
    with pytest.raises(InfeasibleBudgetError):
        compile(model, "55%", split=False, **FAST)(x)
    plain = compile(model, "95%", split=False, **FAST)
    plain(x)
    assert plain.plans[0].divided is None


@pytest.mark.parametrize("budget", [ROOMY, "100%"])
def test_where_no_pieces_are_needed_there_are_none_and_bits_are_equal(budget: int | str) -> None:
    model, plain, x = made()
    compiled = compile(model, budget, **FAST)
    assert torch.equal(compiled(x), plain(x))
    compiled(x).backward()
    plain(x).backward()
    assert compiled.plans[0].divided is None
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))


def names_of_pieces(plan: Any) -> set[str]:
    return {
        node.meta["piece"].name for node in plan.traced.nodes if node is not None and "piece" in node.meta
    }


@pytest.mark.parametrize("count", [2, 4, 32])
def test_a_mapping_says_what_runs_in_how_many_pieces(count: int) -> None:
    model, plain, x = made()
    compiled = compile(model, ROOMY, split={"_log_softmax": count}, **FAST)
    compiled(x).backward()
    plain(x).backward()
    assert_near(gradients(model), gradients(plain), 1e-6)
    plan = compiled.plans[0]
    ((_, parts),) = plan.divided.divisions
    assert len(parts) == count
    runs = [n for n in plan.traced.nodes if n is not None and n.target is torch.ops.aten._log_softmax.default]
    assert len(runs) == count
    assert {"_log_softmax", "mm_1"} <= names_of_pieces(plan)


def test_one_piece_is_the_whole() -> None:
    model, plain, x = made()
    compiled = compile(model, ROOMY, split={"_log_softmax": 1}, **FAST)
    assert torch.equal(compiled(x), plain(x))
    assert compiled.plans[0].divided is None


def test_an_unknown_op_is_refused_with_the_names_of_those_that_can_be_cut() -> None:
    model, _, x = made()
    with pytest.raises(ValueError, match="_log_softmax") as refused:
        compile(model, ROOMY, split={"softmax_of_scores": 4}, **FAST)(x)
    assert "softmax_of_scores" in str(refused.value)


@pytest.mark.parametrize("value", [True, None, "always", 4, {"mm": 0}, {"mm": "4"}, {"mm": True}])
def test_other_values_are_refused_before_anything_is_traced(value: Any) -> None:
    for entry in (compile, enable):
        with pytest.raises(ValueError, match=r"'auto', False, or a mapping"):
            entry(Language(), ROOMY, split=value)
    optimizer = torch.optim.SGD((model := Language()).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"'auto', False, or a mapping"):
        compile_step(model, lambda model, x: model(x), optimizer, budget=ROOMY, split=value)


def test_plans_ahead_count_pieces_too() -> None:
    model, _, x = made()
    found = checkmate_torch.plan(model, (x,), "55%", **FAST)
    assert found.peak is not None
    assert found.peak <= found.problem.budget
    assert any("[" in op.name for op in found.problem.graph.ops)
    refused = checkmate_torch.plan(model, (x,), "55%", split=False, throw=False, **FAST)
    assert refused.peak is None


def test_products_of_pieces_for_another_gpu_have_the_precision_of_the_whole() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(4096, 32768, bias=False)

        def forward(self, x: Tensor, targets: Tensor) -> Tensor:
            return functional.cross_entropy(self.scores(x), targets)

    with torch.device("meta"):
        model = Wide().to(torch.bfloat16)
        batch = (torch.zeros(4096, 4096, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.long))
    costs = [
        checkmate_torch.plan(
            model, batch, ROOMY, device="cuda:H100-80GB", split=split
        ).problem.graph.ideal_cost
        for split in (False, {"_log_softmax_backward_data": 4})
    ]
    assert costs[0] <= costs[1] <= 2 * costs[0]  # in single precision products take 15 times as long


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32_000, 512), nn.Linear(512, 32_000, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.table(words)), words)


def test_sums_of_half_precision_cost_little_on_a_gpu_that_is_not_here() -> None:
    with torch.device("meta"):
        model, words = Words().to(torch.bfloat16), torch.empty(16_384, dtype=torch.long)
    whole, cut = (
        checkmate_torch.plan(model, words, "100%", device="cuda:H100-80GB", split=split)
        for split in (False, {"_log_softmax_backward_data": 8})
    )
    assert cut.pieces
    assert not whole.pieces
    assert cut.problem.graph.ideal_cost < 1.08 * whole.problem.graph.ideal_cost

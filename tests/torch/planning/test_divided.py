"""A step in pieces says what is cut, into how many, and why; its reports show an op in pieces as one op."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import checkmate
from checkmate.torch import CompiledModule, compile
from checkmate_torch.ops.cut_rules import is_view
from checkmate_torch.planning.options import Split

WORDS, WIDTH, TOKENS = 512, 16, 64


class Language(nn.Module):
    """Logits of a vocabulary that is wide beside the network, and their loss; or both."""

    def __init__(self, *, returns_logits: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, WORDS)
        self.returns_logits = returns_logits

    def forward(self, words: Tensor) -> tuple[Tensor, ...] | Tensor:
        logits = self.head(self.body(self.token(words)))
        loss = cross_entropy(logits, words)
        return (loss, logits) if self.returns_logits else loss


def trained(budget: str, split: Split = "auto", *, returns_logits: bool = False) -> CompiledModule:
    torch.manual_seed(0)
    compiled = compile(Language(returns_logits=returns_logits), budget, split=split)
    loss = compiled(torch.randint(WORDS, (TOKENS,)))
    (loss[0] if returns_logits else loss).backward()
    return compiled


@pytest.fixture(scope="module")
def whole() -> CompiledModule:
    return trained("100%", split=False)


@pytest.fixture(scope="module")
def needed() -> CompiledModule:
    return trained("50%")


def test_the_report_says_what_is_cut_and_that_the_budget_needs_it(
    whole: CompiledModule, needed: CompiledModule
) -> None:
    (plan,) = needed.plans
    assert plan.divided is not None
    assert plan.solution.problem.budget < checkmate.floor(whole.plans[0].traced.graph).size
    (count,) = {len(parts) for _, parts in plan.divided.divisions}
    text = str(needed.report())
    assert re.search(
        rf"{TOKENS} rows of \w+ and the ops around it \(in .*head\) are cut into {count} pie", text
    )
    least = checkmate.units.format_bytes(checkmate.floor(whole.plans[0].traced.graph).size)
    assert f"why pieces: no schedule without them needs less than {least}" in text
    assert "for these pieces" in text


def test_extra_cost_is_that_over_the_step_without_pieces(
    whole: CompiledModule, needed: CompiledModule
) -> None:
    plain, cost = whole.plans[0].traced.graph.ideal_cost, needed.plans[0].solution.cost
    assert needed.plans[0].solution.pieces.plain_cost == plain
    assert needed.report().overhead == pytest.approx(cost / plain - 1)
    assert f"{cost / plain - 1:.1%}  " in str(needed.report())


def test_an_op_in_pieces_is_one_row(needed: CompiledModule, tmp_path: Path) -> None:
    (plan,) = needed.plans
    assert plan.divided is not None
    (count,) = {len(parts) for _, parts in plan.divided.divisions}
    of = plan.solution.pieces.of
    assert len(of) == plan.traced.graph.n_ops
    cut = {piece.name for piece in of if piece is not None}
    for name in cut:
        found = [piece for piece in of if piece is not None and piece.name == name]
        assert {piece.index for piece in found} == set(range(count))
        assert {piece.count for piece in found} == {count}
    explanation = needed.explain()
    assert sum(row.again for row in explanation.rows) == plan.solution.timeline.recomputes
    assert len({row.op for row in explanation.rows}) == len(explanation.rows)
    assert {row.op for row in explanation.rows if row.pieces > 1} <= cut
    needed.save_report(tmp_path / "step.html")
    assert f"{len(cut)} of them in pieces: {len(of)} with each piece" in (tmp_path / "step.html").read_text()
    needed.save_report(tmp_path / "step.dot")
    assert f"{count} pieces" in (tmp_path / "step.dot").read_text()
    needed.save_report(tmp_path / "step.perfetto.json")
    assert f'"piece":"1 of {count}"' in (tmp_path / "step.perfetto.json").read_text()


def test_a_view_of_what_was_cut_is_no_op(whole: CompiledModule, needed: CompiledModule) -> None:
    """A gradient of a weight that is added up over pieces is returned as a view of the sum."""
    for compiled in (whole, needed):
        nodes = compiled.plans[0].traced.nodes
        assert not any(node is not None and is_view(node) for node in nodes)


def test_without_pieces_nothing_is_said_of_them(whole: CompiledModule) -> None:
    assert not whole.plans[0].solution.pieces
    assert "pieces" not in str(whole.report())
    assert whole.report().overhead == whole.plans[0].solution.overhead


def test_pieces_that_are_asked_for() -> None:
    name = trained("50%").plans[0].divided.divisions[0].region.name
    asked = trained("100%", split={name: 2})
    text = str(asked.report())
    assert "are cut into 2 pieces" in text
    assert "why pieces: split= asks for them" in text


def test_logits_beside_the_loss_are_named_where_they_are_in_the_way() -> None:
    logits = checkmate.units.format_bytes(4 * WORDS * TOKENS)
    with pytest.raises(checkmate.InfeasibleBudgetError) as caught:
        trained("45%", returns_logits=True)
    assert f"The model returns {logits} besides the loss" in caught.value.advice
    with pytest.raises(checkmate.InfeasibleBudgetError) as caught:
        trained("5%")
    assert caught.value.advice == ""


def test_an_infeasible_budget_is_proved_for_one_graph_of_pieces_only() -> None:
    with pytest.raises(checkmate.InfeasibleBudgetError) as caught:
        trained("33%", returns_logits=True)
    assert not caught.value.proved
    assert "with ops in as many pieces as help" in str(caught.value)
    with pytest.raises(checkmate.InfeasibleBudgetError, match="pieces of ops don't help") as caught:
        trained("1%")
    assert caught.value.proved

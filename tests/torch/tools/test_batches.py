"""The largest batch: the batch found fits, and one more example does not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import checkmate
from checkmate.testing.strategies import graphs
from checkmate_torch import LargestBatch, max_batch_size, plan
from checkmate_torch.tools.batches import _have_same_ops, _on_line, largest
from zoo.small_torch import perceptron

network = partial(perceptron, 32, 64, 64, 8)


def inputs(n: int) -> torch.Tensor:
    return torch.randn(n, 32)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 400))
def test_the_largest_size_that_fits_is_found_in_few_tries(limit: int, most: int, start: int) -> None:
    tried: list[int] = []

    def fits(n: int) -> bool:
        tried.append(n)
        return n <= limit

    assert largest(fits, most, start) == min(limit, most)
    assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 1
    assert all(1 <= n <= most for n in tried)
    if start == min(limit, most) > 0:
        assert len(tried) <= 2


@given(st.data())
def test_graphs_that_are_linear_in_the_batch_are_known_from_two_sizes(data: st.DataObject) -> None:
    graph, slope = data.draw(graphs()), data.draw(st.integers(0, 9))
    sizes = [data.draw(st.integers(1, 50)) for _ in range(3)]

    def over(n: int) -> checkmate.DFGraph:
        tensors = tuple(replace(t, size=t.size + slope * n) for t in graph.tensors)
        ops = tuple(replace(op, workspace=op.workspace + n) for op in graph.ops)
        return replace(graph, tensors=tensors, ops=ops, fixed_size=graph.fixed_size + slope * n)

    a, b, n = sizes
    assume(a != b)
    assert _have_same_ops(over(a), over(b))
    found = _on_line(over(a), over(b), (n - a) / (b - a))
    assert (found.tensors, found.fixed_size) == (over(n).tensors, over(n).fixed_size)
    assert [op.workspace for op in found.ops] == [op.workspace for op in over(n).ops]


def test_the_batch_found_fits_and_one_more_example_does_not() -> None:
    loss = lambda y: y.square().mean()  # noqa: E731
    settings = {"cost_model": "flops", "solver": "heuristics", "split": False, "loss": loss}
    found = max_batch_size(inputs, network(), "128KiB", **settings)
    assert found.tried[found.size]
    assert not found.tried[found.size + 1]
    assert found.solution.peak <= 128 * 1024
    larger = plan(network(), inputs(found.size + 1), "128KiB", throw=False, **settings)
    assert larger.timeline is None
    plain = max_batch_size(inputs, network(), "128KiB", 0.0, **settings)
    assert 0 < plain.size < found.size
    assert plain.solution.overhead == 0
    assert int(plain) == plain.size


class Words(torch.nn.Module):
    """A language model whose logits outweigh all else; computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(512, 8), torch.nn.Linear(8, 512, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.head(self.embed(words)), words)


def test_a_batch_that_fits_only_in_pieces_is_found() -> None:
    def found(**settings: Any) -> LargestBatch:
        words = partial(torch.zeros, dtype=torch.long)
        return max_batch_size(words, Words(), "1MiB", cost_model="flops", solver="heuristics", **settings)

    whole, pieces = found(split=False), found(most=1024)
    assert not whole.tried[whole.size + 1]
    assert pieces.size > 3 * whole.size
    assert pieces.solution.peak <= 2**20


@pytest.mark.measured
def test_the_plan_of_the_answer_has_the_settings_of_the_caller() -> None:
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
    steps: list[str] = []
    found = max_batch_size(
        lambda n: torch.zeros(n, 3, 16, 16),
        layer,
        "1MiB",
        solver="heuristics",
        split=False,
        loss=lambda y: y.square().mean(),
        on_progress=lambda report: steps.append(report.step),
    )
    graph = found.solution.problem.graph
    assert graph.cost_unit == "s"
    assert max(op.workspace for op in graph.ops) > 0
    assert found.solution.peak <= 2**20
    assert (found.tried[found.size], found.tried[found.size + 1]) == (True, False)
    assert {f"{found.size} examples fit", f"planning for {found.size} examples"} <= set(steps)


def test_after_the_time_limit_a_size_that_fits_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"cost_model": "flops", "solver": "heuristics", "time_limit": 1e-9}
    found = max_batch_size(inputs, network(), "1MiB", **settings)
    assert found.size >= 1
    assert found.solution.peak <= 2**20
    assert "the time limit of 1e-09 s ended the search" in caplog.text


def test_memory_that_grows_with_the_square_of_the_batch() -> None:
    loss = lambda y: (y @ y.T).square().mean()  # noqa: E731
    settings = {"cost_model": "flops", "solver": "keep-all", "split": False, "loss": loss}
    found = max_batch_size(inputs, network(), "1MiB", **settings)
    assert (found.tried[found.size], found.tried[found.size + 1]) == (True, False)
    assert len(found.tried) <= 2 * max(found.tried).bit_length() + 1


def test_not_even_one_example_and_more_than_enough() -> None:
    settings = {"cost_model": "flops", "solver": "keep-all"}
    none = max_batch_size(inputs, network(), "1KiB", **settings)
    assert (none.size, none.tried) == (0, {1: False})
    assert none.solution.status is checkmate.Status.INFEASIBLE
    assert max_batch_size(inputs, network(), "1GiB", most=3, **settings).size == 3


def test_inputs_on_meta_represent_inputs_on_the_cpu() -> None:
    settings = {"cost_model": "flops", "solver": "keep-all", "most": 2}
    there = max_batch_size(lambda n: torch.zeros(n, 32), network(), "1GiB", **settings)
    nowhere = max_batch_size(lambda n: torch.zeros(n, 32, device="meta"), network(), "1GiB", **settings)
    assert nowhere.solution.peak == there.solution.peak


def test_bad_settings_are_refused_with_the_way_out() -> None:
    with pytest.raises(checkmate.BudgetError, match="another one for each batch"):
        max_batch_size(inputs, network(), "60%")
    with pytest.raises(ValueError, match="must be a share"):
        max_batch_size(inputs, network(), "1MiB", -0.1)
    with pytest.raises(ValueError, match="most is 0"):
        max_batch_size(inputs, network(), "1MiB", most=0)


def test_auto_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(
        "checkmate_torch.planning.decide.obtainable_bytes", lambda device: asked.append(device) or 200 * 1024
    )
    found = max_batch_size(inputs, network(), "auto", cost_model="flops", solver="keep-all", split=False)
    assert found.size > 0
    assert len(asked) == 1

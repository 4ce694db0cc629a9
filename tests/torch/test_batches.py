"""The largest batch: the batch found fits, and one more example does not."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import checkmate
from checkmate_torch import max_batch_size, plan
from checkmate_torch.batches import largest
from zoo.small_torch import perceptron

network = partial(perceptron, 32, 64, 64, 8)


def inputs(n: int) -> torch.Tensor:
    return torch.randn(n, 32)


@given(st.integers(0, 300), st.integers(1, 300))
def test_bisection_finds_the_largest_size_that_fits_in_few_tries(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(n: int) -> bool:
        tried.append(n)
        return n <= limit

    assert largest(fits, most) == min(limit, most)
    assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 1
    assert all(1 <= n <= most for n in tried)


def test_the_batch_found_fits_and_one_more_example_does_not() -> None:
    settings = {"cost_model": "flops", "solver": "heuristics", "loss": lambda y: y.square().mean()}
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
        "checkmate_torch.ahead.obtainable_bytes", lambda device: asked.append(device) or 200 * 1024
    )
    found = max_batch_size(inputs, network(), "auto", cost_model="flops", solver="keep-all")
    assert found.size > 0
    assert len(asked) == 1

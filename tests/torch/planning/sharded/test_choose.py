"""Choosing schedules: what is chosen fits wherever something fits, and costs little more than the optimum."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_torch.planning.sharded.choose import chosen, least

Knapsack: TypeAlias = "tuple[list[list[float]], list[npt.NDArray[np.float64]], npt.NDArray[np.float64]]"


@st.composite
def knapsacks(draw: Callable[..., object]) -> Knapsack:
    """Up to four calls, each with up to four schedules, at up to five moments."""
    numbers = np.random.default_rng(draw(st.integers(0, 10**6)))
    n_moments = numbers.integers(1, 6)
    costs, held = [], []
    for _ in range(numbers.integers(1, 5)):
        n = numbers.integers(1, 5)
        costs.append(sorted(numbers.integers(0, 20, n).tolist()))
        held.append(numbers.integers(0, 50, (n, n_moments)).astype(float))
    return costs, held, numbers.integers(0, 20, n_moments).astype(float)


def peak(knapsack: Knapsack, picks: tuple[int, ...] | list[int]) -> float:
    _, held, rest = knapsack
    return float((rest + sum(rows[j] for rows, j in zip(held, picks, strict=True))).max())


def cost(knapsack: Knapsack, picks: tuple[int, ...] | list[int]) -> float:
    return sum(costs[j] for costs, j in zip(knapsack[0], picks, strict=True))


def choices(knapsack: Knapsack) -> list[tuple[int, ...]]:
    return [*itertools.product(*(range(len(costs)) for costs in knapsack[0]))]


@given(knapsacks(), st.floats(0, 1))
def test_no_single_cheaper_schedule_would_fit_instead(knapsack: Knapsack, share: float) -> None:
    budget = share * peak(knapsack, [0] * len(knapsack[0]))
    picks = chosen(*knapsack, budget)
    if peak(knapsack, picks) > budget:
        return
    for i, costs in enumerate(knapsack[0]):
        cheaper = [[*picks[:i], j, *picks[i + 1 :]] for j, c in enumerate(costs) if c < costs[picks[i]]]
        assert all(peak(knapsack, other) > budget for other in cheaper)


@given(knapsacks())
def test_the_cheapest_are_chosen_where_they_fit(knapsack: Knapsack) -> None:
    cheapest = [0] * len(knapsack[0])
    picks = chosen(*knapsack, peak(knapsack, cheapest))
    assert cost(knapsack, picks) == cost(knapsack, cheapest)


@given(knapsacks())
def test_the_least_is_reached_again_as_a_budget(knapsack: Knapsack) -> None:
    found = peak(knapsack, least(*knapsack))
    assert found <= peak(knapsack, [0] * len(knapsack[0]))
    assert found >= min(peak(knapsack, picks) for picks in choices(knapsack))


def test_most_choices_are_near_the_optimum() -> None:
    """One peak that all calls share, each with schedules that hold less for more: as where blocks repeat."""
    numbers, ratios = np.random.default_rng(0), []
    for _ in range(50):
        held = [np.sort(numbers.integers(1, 50, (4, 1)), axis=0)[::-1].astype(float) for _ in range(5)]
        costs = [np.sort(numbers.integers(1, 20, 4)).astype(float).tolist() for _ in range(5)]
        knapsack = costs, held, np.zeros(1)
        budget = 0.5 * (peak(knapsack, [0] * 5) + peak(knapsack, [3] * 5))
        picks = chosen(*knapsack, budget)
        assert peak(knapsack, picks) <= budget
        optimum = min(cost(knapsack, x) for x in choices(knapsack) if peak(knapsack, x) <= budget)
        ratios.append(cost(knapsack, picks) / optimum)
    assert np.mean(ratios) == pytest.approx(1, abs=0.05)

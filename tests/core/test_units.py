"""Bytes as people write them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import BudgetError
from checkmate.units import Budget, format_bytes, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("512 MB", 512 * 10**6),
        ("8G", 8 * 2**30),
        ("512 M", 512 * 2**20),
        ("1.5k", 1536),
        ("1.5KiB", 1536),
        (" 7 ", 7),
        ("7b", 7),
        (".5kB", 500),
        ("2TiB", 2**41),
        ("1PB", 10**15),
        ("0.1B", 0),
        ("9007199254740993", 2**53 + 1),
        ("0." + "9" * 40 + " GiB", 2**30 - 1),
        (2**63 - 1, 2**63 - 1),
        (12, 12),
    ],
)
def test_sizes_are_read_exactly(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8 GiBs", "-1", "1e9", "1,5GB", "0x10", -1, True, 1.0, None])
def test_an_unreadable_size_is_rejected(text: object) -> None:
    with pytest.raises(BudgetError):
        parse_bytes(text)  # type: ignore[arg-type]


def test_more_than_can_be_counted_is_rejected() -> None:
    for text in ("9" * 5000, "8192PiB", 2**63, 10**5000, "1001%", "9" * 5000 + "%"):
        with pytest.raises(BudgetError) as caught:
            parse_budget(text, whole=1000)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("budget", "size"),
    [("60%", 600), (0.6, 600), ("12.5 %", 125), ("1KiB", 1024), (5, 5), (0.29, 290), ("100%", 1000)],
)
def test_budgets_may_be_shares(budget: Budget, size: int) -> None:
    assert parse_budget(budget, whole=1000) == size


@pytest.mark.parametrize(
    "budget",
    [0, -5, 0.0, -0.5, "0%", "0", float("nan"), float("inf"), 8e9, "%", "60 percent", True, "0.01%"],
)
def test_senseless_budgets_are_rejected(budget: Budget) -> None:
    with pytest.raises(BudgetError):
        parse_budget(budget, whole=1000)


@pytest.mark.parametrize("text", ["60", " 60 ", "1.5", "100"])
def test_a_bare_number_is_asked_about_with_texts_that_are_read(text: str) -> None:
    with pytest.raises(BudgetError, match=r"bytes\? Write ") as caught:
        parse_budget(text, whole=2**40)
    for advice in re.findall(r"'(.+?)'", str(caught.value)):
        assert parse_budget(advice, whole=2**40) > 0
    assert parse_budget("101", whole=2**40) == 101
    assert parse_budget(60, whole=2**40) == parse_budget("60B", whole=2**40) == 60
    assert parse_budget("60", whole=1000) == 60  # of a toy graph


@given(st.integers(0, 2**62))
def test_a_plain_number_is_itself(size: int) -> None:
    assert parse_bytes(str(size)) == parse_bytes(size) == size


@given(st.integers(1, 2**62), st.integers(0, 10**30))
def test_shares_are_exact(whole: int, digits: int) -> None:
    """``0.0…0 %`` to ``10 %``, in 30 decimal places."""
    percent = f"{digits // 10**29}.{digits % 10**29:029d}%"
    if size := digits * whole // 10**31:
        assert parse_budget(percent, whole) == size


@given(st.integers(0, 2**60))
def test_formatted_sizes_read_back_nearly(size: int) -> None:
    assert abs(parse_bytes(format_bytes(size)) - size) <= size * 0.006


@given(st.integers(1, 2**62))
def test_a_share_of_one_is_the_whole(whole: int) -> None:
    """Also if the whole is no exact float."""
    assert parse_budget(1.0, whole) == parse_budget("100%", whole) == whole


def test_numbers_of_numpy_are_numbers() -> None:
    assert parse_bytes(np.int64(7)) == 7  # type: ignore[arg-type]
    assert parse_budget(np.uint8(5), whole=1000) == 5  # type: ignore[arg-type]
    assert parse_budget(np.float32(0.5), whole=1000) == 500  # type: ignore[arg-type]
    with pytest.raises(BudgetError):
        parse_bytes(np.bool_(True))  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["", "%", "x", " GiB", ".5"])
def test_endless_digits_are_refused_unread(end: str) -> None:
    """Parsing ten million digits would take hours."""
    with pytest.raises(BudgetError) as caught:
        parse_budget("9" * 10**7 + end, whole=1000)
    assert len(str(caught.value)) < 300

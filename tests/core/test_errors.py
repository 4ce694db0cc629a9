"""Errors: messages with readable sizes and advice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkmate
from checkmate.errors import DISTRIBUTIONS, InfeasibleBudgetError, install_hint
from checkmate.units import parse_budget


def infeasible(**said: object) -> str:
    told = {"budget": 3 * 2**30, "minimum": 2**32, "floor": 2**31, "bottleneck": "conv1", "proved": True}
    return str(InfeasibleBudgetError(**(told | said)))  # type: ignore[arg-type]


def test_budgets_in_messages_are_exact_and_readable() -> None:
    assert infeasible() == (
        "a budget of 3221225472 bytes (3.00 GiB) is proved infeasible; "
        "the least budget known to work is 4294967296 bytes (4.00 GiB). "
        "No schedule can need less than 2147483648 bytes (2.00 GiB): op 'conv1' sets that floor. "
        "Raise the budget, or make the batch or that op smaller."
    )
    assert infeasible(budget=17820).startswith("a budget of 17820 bytes (17.40 KiB) is")
    assert infeasible(budget=12).startswith("a budget of 12 bytes is")
    assert "no budget is known to work" in infeasible(minimum=None)
    assert "was not met by any schedule that was found" in infeasible(proved=False)


@given(st.integers(1, 2**50), st.integers(1, 2**50))
def test_the_least_share_in_a_message_is_enough(minimum: int, whole: int) -> None:
    message = infeasible(budget=minimum - 1, minimum=minimum, whole=whole)
    share = re.search(r", ([\d.]+%) of the plain step's peak", message)
    assert share is not None
    if float(share[1][:-1]) <= 1000:
        assert minimum <= parse_budget(share[1], whole) <= minimum + whole / 1000 + 1


def test_a_budget_that_is_known_to_be_enough_is_the_solvers_failure() -> None:
    message = infeasible(budget=12, minimum=12, floor=10, proved=False, reason="no chain")
    assert message == (
        "a budget of 12 bytes was not met by this solver (no chain), but 12 bytes is known to be enough. "
        "No schedule can need less than 10 bytes: op 'conv1' sets that floor. "
        "Ask another solver, as 'auto', or give it more time."
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_our_own_distributions_are_never_taken_from_the_package_index(name: str) -> None:
    hint = install_hint(f"numba {name}[extra] {name} checkmate-everest")
    assert hint.startswith(
        f"pip install numba './packages/{name}[extra]' ./packages/{name} checkmate-everest in a clone"
    )


def test_no_message_names_a_distribution_of_ours_as_if_it_were_published() -> None:
    """``pip install`` never gets a name that anyone could register."""
    named = re.compile(r"pip install [^`\n]*(?<!/)checkmate-(?:core|solvers|tf|torch)\b")
    texts = {path: path.read_text(encoding="utf-8") for path in Path(checkmate.__file__).parent.rglob("*.py")}
    assert named.search("pip install 'checkmate-core[cli]'")
    assert not {path: found for path, text in texts.items() if (found := named.findall(text))}


@pytest.mark.parametrize("name", ["\x1b[31mred", "n" * 10**6, "two\nlines"])
def test_a_hostile_name_stays_on_one_short_line(name: str) -> None:
    message = infeasible(bottleneck=name)
    assert message.isprintable()
    assert len(message) < 1500

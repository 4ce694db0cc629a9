"""Any name becomes one visible line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.text.printable import byte_unit, clipped, cost_text, excerpt, printable, quoted

ANYTHING = st.text(st.characters(codec=None))


@given(ANYTHING)
def test_one_line_that_can_be_seen_and_encoded(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert quoted(text).isprintable()


@given(ANYTHING, st.integers(3, 40))
def test_clipping_keeps_the_ends(text: str, length: int) -> None:
    shown, whole = clipped(text, length), printable(text)
    assert len(shown) <= length
    if len(whole) > length:
        head, tail = shown.split("…")[0], shown.rsplit("…", 1)[1]
        assert whole.startswith(head)
        assert whole.endswith(tail)
    else:
        assert shown == whole


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb", "a\\tb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
        ("é 层", "é 层"),
    ],
)
def test_invisible_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut_before_it_is_escaped() -> None:
    text = "\x1b[2J" + "9" * 10**6 + "\n"
    assert clipped(text, 10) == "\\x1b[…99\\n"
    assert len(quoted(text)) < 70
    assert (len(excerpt(text)), excerpt(text).isprintable()) == (1000, True)


def test_costs_and_units() -> None:
    assert cost_text(2.5e-5, "s") == "25 µs"
    assert cost_text(0.0, "s") == "0 s"
    assert cost_text(1.5, "") == "1.5"
    assert [byte_unit(n) for n in (0, 1023, 1024, 2**62)] == [
        (1, "B"),
        (1, "B"),
        (1024, "KiB"),
        (2**50, "PiB"),
    ]

"""The terminal picture: laws for any memory and width, and pictures known by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.cli.commands.timeline import ASCII, BLOCKS, Glyphs, Line, picture

runs = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2)), min_size=1, max_size=200)
budgets = st.none() | st.integers(1, 2**62)
glyphs = st.sampled_from([ASCII, BLOCKS])


def drawn(
    shown: list[tuple[int, int]], budget: int | None, width: int, height: int, with_: Glyphs
) -> list[Line]:
    memory, phases = (np.array(column, dtype=np.int64) for column in zip(*shown, strict=True))
    return picture(memory, phases, width=width, height=height, budget=budget, glyphs=with_)


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def curve(lines: list[Line]) -> tuple[int, list[str]]:
    """The position of the first column, and the cells of each row."""
    rows = texts(lines)
    left = len(rows[-2]) - len(rows[-2].lstrip())
    return left, [row[left:] for row in rows[1:-3]]


@given(runs, budgets, st.integers(0, 150), st.integers(1, 15), glyphs)
def test_no_line_is_wider_than_asked(
    shown: list[tuple[int, int]], budget: int | None, width: int, height: int, with_: Glyphs
) -> None:
    rows = texts(drawn(shown, budget, width, height, with_))
    assert len(rows) == height + 4
    left, cells = curve(drawn(shown, budget, width, height, with_))
    assert {len(row) for row in cells} == {len(rows[-2]) - left}
    assert max(map(len, rows)) <= max(width, left + 12, left + len(rows[-1].strip()))


@given(runs, st.integers(30, 150), st.integers(1, 15), glyphs)
def test_columns_are_as_high_as_the_most_memory_of_their_runs(
    shown: list[tuple[int, int]], width: int, height: int, with_: Glyphs
) -> None:
    lines = drawn(shown, None, width, height, with_)
    left, cells = curve(lines)
    columns, full = len(cells[0]), len(with_.levels) - 1
    memory = [size for size, _ in shown]
    for c in range(columns):
        a = c * len(memory) // columns
        b = max((c + 1) * len(memory) // columns, a + 1)
        parts = sum(with_.levels.index(row[c]) for row in cells)
        exact = Fraction(max(memory[a:b]) * height * full, max(*memory, 1))
        assert exact <= parts < exact + 1
    mark = texts(lines)[0].index(with_.peak) - left
    assert cells[0][mark] == with_.levels[full if any(memory) else 0]


@given(runs, st.integers(1, 2**62), st.integers(1, 15))
def test_the_budget_is_a_line_and_memory_above_it_is_marked(
    shown: list[tuple[int, int]], budget: int, height: int
) -> None:
    lines = drawn(shown, budget, 80, height, BLOCKS)
    styles = [{what for _, what in line} for line in lines]
    assert sum("budget" in row for row in styles) <= 1
    assert any("over" in row for row in styles) == (max(size for size, _ in shown) > budget)
    if all(size * height <= budget * (height - 1) for size, _ in shown):
        assert "budget" in styles[1]


def test_without_a_budget_there_is_no_line() -> None:
    lines = drawn([(4, 0), (8, 1)], None, 60, 4, BLOCKS)
    assert BLOCKS.budget not in "".join(texts(lines))


def test_a_picture_known_by_hand() -> None:
    shown = [(1, 0), (2, 0), (4, 2), (3, 1)]
    assert [row.rstrip() for row in texts(drawn(shown, 3, 12, 4, ASCII))] == [
        "           v",
        "4 B |      ###",
        "3 B |------######",
        "    |   #########",
        "    |############",
        "0 B +------------",
        "     ffffffrrrbbb",
        "     run 0  run 3",
    ]


def test_letters_and_pieces_have_the_style_of_their_phase() -> None:
    lines = drawn([(1, 0), (1, 1), (1, 2)], None, 40, 1, ASCII)
    assert lines[-2][1:] == [("f" * 8, "forward"), ("b" * 8, "backward"), ("r" * 8, "recompute")]
    assert lines[1][1:] == [("#" * 8, "forward"), ("#" * 8, "backward"), ("#" * 8, "recompute")]


def test_of_many_runs_in_a_column_the_commonest_phase_shows_and_of_equals_the_later() -> None:
    common = drawn([(1, 1), (1, 1), (1, 2)] * 12, None, 0, 1, ASCII)
    equal = drawn([(1, 1), (1, 2)] * 12, None, 0, 1, ASCII)
    assert common[-2][1] == ("b" * 12, "backward")
    assert equal[-2][1] == ("r" * 12, "recompute")


def test_where_nothing_runs_nothing_is_drawn() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert picture(none, none, width=80) == []


@pytest.mark.parametrize("memory", [0, 1, 2**62])
def test_a_single_run(memory: int) -> None:
    rows = texts(drawn([(memory, 0)], None, 80, 2, BLOCKS))
    assert rows[1].endswith(("█" if memory else " ") * 8)
    assert rows[-1].strip() == "runs 0 to 0"

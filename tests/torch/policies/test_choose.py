"""The choice of parts is as good as trying all choices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_torch import Recompute
from checkmate_torch.policies.choose import cheapest, least_peak
from checkmate_torch.policies.parts import Again, Effect, Part, Windows

OPTIONS = (Again(), Again(inner=True))
effects = st.builds(
    Effect,
    held=st.integers(-9, 2),
    forward=st.integers(-5, 5),
    backward=st.integers(-5, 5),
    cost=st.integers(0, 9),
)


@dataclass
class Tables:
    """What is known of parts, as :class:`~checkmate_torch.policies.parts.PartTables` has it."""

    parts: tuple[Part, ...]
    plain: Windows
    effects: dict[int, dict[Again, Effect]]


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    """Up to four outer parts, some with two or three parts; each part may run again in up to two ways."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=4))
    kinds, first, outer = itertools.count(), 0, []

    def part(path: str, first: int, parts: tuple[Part, ...] = ()) -> Part:
        last = parts[-1].last if parts else first
        return Part(path=path, first=first, last=last, parts=parts, alike=next(kinds), held=9)

    for k, size in enumerate(sizes):
        inner = tuple(part(f"x{k}.{j}", first + j) for j in range(size)) if size > 1 else ()
        outer.append(part(f"x{k}", first, inner))
        first += size
    peaks = st.lists(st.integers(10, 40), min_size=first, max_size=first).map(tuple)
    plain = Windows(at=(), forward=draw(peaks), backward=draw(peaks), beside=draw(st.integers(10, 40)))
    known = {alike: draw(st.dictionaries(st.sampled_from(OPTIONS), effects)) for alike in range(next(kinds))}
    return Tables(tuple(outer), plain, known)


def choices(part: Part, known: Any) -> Iterator[list[tuple[Part, Again | None]]]:
    """All ways to run a part: again in a way, or each of its parts."""
    yield from ([(part, option)] for option in known[part.alike])
    if not part.parts:
        yield [(part, None)]
        return
    for each in itertools.product(*(choices(inner, known) for inner in part.parts)):
        yield list(itertools.chain(*each))


def outcome(found: Tables, ways: Sequence[tuple[Part, Again | None]]) -> tuple[float, float]:
    """Peak and cost of a choice, by the definition."""
    held, cost, peak = 0, 0.0, 0.0
    for part, option in ways:
        pieces = slice(part.first, part.last + 1)
        nothing = Effect(held=0, forward=0, backward=0, cost=0.0)
        effect = nothing if option is None else found.effects[part.alike][option]
        forward = max(found.plain.forward[pieces]) + effect.forward
        backward = max(found.plain.backward[pieces]) + effect.backward
        peak = max(peak, held + max(forward, backward))
        held, cost = held + effect.held, cost + effect.cost
    return max(peak, held + found.plain.beside), cost


def outcomes(found: Tables) -> list[tuple[float, float]]:
    ways = itertools.product(*(choices(part, found.effects) for part in found.parts))
    return [outcome(found, list(itertools.chain(*each))) for each in ways]


@given(tables(), st.integers(0, 40))
def test_no_choice_within_the_budget_is_cheaper(found: Tables, budget: int) -> None:
    fitting = [cost for peak, cost in outcomes(found) if peak <= budget]
    choice = cheapest(found, budget)  # type: ignore[arg-type]
    if choice is None:
        assert not fitting
        return
    assert choice.cost == min(fitting)
    assert choice.peak <= budget
    named = [(part, option) for part, option in choice.options if option is not None]
    assert sum(found.effects[part.alike][option].cost for part, option in named) == choice.cost


@given(tables())
def test_the_least_peak_is_found(found: Tables) -> None:
    least = min(peak for peak, _ in outcomes(found))
    assert least_peak(found).peak == pytest.approx(least, abs=0.02)  # type: ignore[arg-type]


def test_without_need_nothing_runs_again() -> None:
    plain = Windows(at=(0, 1), forward=(10.0,), backward=(20.0,), beside=30.0)
    part = Part(path="x", first=0, last=0, parts=(), alike=0, held=1)
    again = {Again(): Effect(held=-9, forward=0, backward=0, cost=1.0)}
    found: Any = Tables((part,), plain, {0: again})
    assert cheapest(found, 30).policy == Recompute()  # type: ignore[union-attr]
    assert cheapest(found, 29).policy == Recompute(modules=("x",))  # type: ignore[union-attr]
    assert cheapest(found, 19) is None

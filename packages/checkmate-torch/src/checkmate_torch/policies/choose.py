"""The cheapest options of a model's parts within a budget.

    min Σ cost(xₖ)  over options xₖ of the parts k = 1 … n, with
    Pₖ + Σ_{i<k} Δheld(xᵢ) + Δ(xₖ) ≤ budget   for the peaks Pₖ of part k in both passes, and
    P + Σᵢ Δheld(xᵢ) ≤ budget                 for the peak P between both passes

Parts run backward in the reverse order, so that what the parts before hold is there in both passes of a part.
A list of states (Δheld so far, cost so far), none of which is worse than another in both, grows part by part;
a part with parts runs again itself, or its parts choose in turn. The choice is the best by the tables; long
lists are thinned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from checkmate_torch.policies.parts import Again, Part, PartTables, joined
from checkmate_torch.policies.policy import Recompute

__all__ = ["Choice", "cheapest", "least_peak"]

_MOST_STATES = 400
_HALVINGS = 12


class Choice(NamedTuple):
    """Options of the parts so far.

    Attributes:
        held: bytes held more than in the plain step.
        cost: of what runs again.
        peak: the most bytes at once so far, as the tables say.
        chosen: the parts that run again, and how, as nested pairs of what was chosen before and the last.
    """

    held: int
    cost: float
    peak: float
    chosen: tuple[Any, tuple[Part, Again]] | None = None

    @property
    def options(self) -> list[tuple[Part, Again]]:
        """The parts that run again, in order, and how."""
        found: list[tuple[Part, Again]] = []
        chosen = self.chosen
        while chosen is not None:
            chosen, option = chosen
            found.insert(0, option)
        return found

    @property
    def policy(self) -> Recompute:
        """The same as one policy."""
        return joined([policy for part, option in self.options for policy in part.policies(option)])


def cheapest(tables: PartTables, budget: float) -> Choice | None:
    """The cheapest options within a budget, in bytes; None = there are none."""
    states = _after(tables, tables.parts, [Choice(0, 0.0, 0.0)], budget)
    beside = tables.plain.beside
    fitting = [
        Choice(s.held, s.cost, max(s.peak, beside + s.held), s.chosen)
        for s in states
        if beside + s.held <= budget
    ]
    return min(fitting, key=lambda state: (state.cost, state.held), default=None)


def least_peak(tables: PartTables) -> Choice:
    """The options with the lowest peak, to a thousandth or so."""
    low, high = 0.0, max([tables.plain.beside, *tables.plain.forward, *tables.plain.backward])
    best = Choice(0, 0.0, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = cheapest(tables, middle)
        best, low, high = (best, middle, high) if found is None else (found, low, middle)
    return best


def _after(
    tables: PartTables, parts: Sequence[Part], states: Sequence[Choice], budget: float
) -> Sequence[Choice]:
    """The states after some parts."""
    for part in parts:
        pieces = slice(part.first, part.last + 1)
        forward, backward = max(tables.plain.forward[pieces]), max(tables.plain.backward[pieces])
        found: list[Choice] = []
        if part.parts:
            found += _after(tables, part.parts, states, budget)
        else:
            peak = max(forward, backward)
            found += [
                Choice(s.held, s.cost, max(s.peak, peak + s.held), s.chosen)
                for s in states
                if peak + s.held <= budget
            ]
        for option, effect in tables.effects.get(part.alike, {}).items():
            peak = max(forward + effect.forward, backward + effect.backward)
            for held, cost, before, chosen in states:
                if held + peak <= budget:
                    peaks = max(before, held + peak)
                    pair = (chosen, (part, option))
                    found.append(Choice(held + effect.held, cost + effect.cost, peaks, pair))
        states = _undominated(found)
    return states


def _undominated(states: Iterable[Choice]) -> list[Choice]:
    """The states that no other beats in bytes and in cost; if they are many, some of them."""
    kept: list[Choice] = []
    best = math.inf
    for state in sorted(states, key=lambda s: (s.held, s.cost)):
        if state.cost < best:
            kept.append(state)
            best = state.cost
    if len(kept) <= _MOST_STATES:
        return kept
    stride = (len(kept) - 1) / (_MOST_STATES - 1)
    return [kept[round(k * stride)] for k in range(_MOST_STATES)]

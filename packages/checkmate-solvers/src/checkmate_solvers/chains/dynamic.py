"""The cheapest schedule of a chain among the nested ones, by dynamic programming over intervals.

Let V(i, j, m) be the least cost of running the backward ops of sections j … i + 1 if state i is resident, the
gradient has come to section j, and m bytes are available for both and for everything else. The choice is what
to keep next; C is the cost of the forward ops that run up to there:

- *checkpoint* k: run sections i + 1 … k, keep state k: V(k, j, m − x_i) + V(i, k, m) + C.
- *save* k: the same, but keep all that the backward ops of section k read; reverse the sections behind k, run
  these backward ops, go on from i: V(k, j, m − x_i − s_k) + V(i, k − 1, m) + C. It needs k = i + 1, or
  backward ops that don't read state k − 1.
- *leave* i: save k = i + 1 where state i is not read again, so that it is freed: V(k, j, m − s_k) + C.
- *pass*: run the backward ops of section j at once, if they read nothing of the forward pass.

The rule "checkpoint" is Griewank's (1992). "Save", and sizes and costs that differ, are due to Beaumont,
Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous chains: how to train deep
neural networks with limited memory" (hal-02352969, 2019; ACM TOMS 2024). There, saving always includes both
ends of a layer; the rest is ours, for layers whose backward ops read less.

*No bound.* V is the optimum over the schedules that these rules make. In them every kept tensor stays until
the backward pass has come to it. With unequal sizes it can pay to free a checkpoint earlier, and the problem
without that rule is NP-hard (same paper). So V is no bound, and the solver claims none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate import Problem, Schedule, Solution, simulate
from checkmate.analysis import needed_ops
from checkmate.heuristics import cheapest
from checkmate_solvers.chains.sections import Sections, sections
from checkmate_solvers.chains.structure import Chain, NoChain, explained, recognise

__all__ = ["ChainDP", "NestedSchedules"]

_FEW_SECTIONS = 32
_MORE_BYTES = 1.15
"""Factor of the budget up to which the programme looks where bytes are rounded up, and so overestimated."""
_ROUNDED_TRIES = 12

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainDP:
    """The dynamic programme, for chains of any length.

    A chain of more layers than ``sections`` is cut into that many sections, first into 32. Bytes are counted
    in units: their greatest common divisor if the budget has at most ``units`` of them, so that nothing is
    rounded; else a larger unit, and kept bytes are rounded up. For a graph that is no chain the answer is
    unknown, unless the base order fits as it is.

    Attributes:
        sections: the most; time grows with its third power.
        units: the most; time and memory grow with it.

    >>> from checkmate.generators import chain
    >>> ChainDP().solve(Problem(graph=chain(8), budget=4)).cost
    26.0
    """

    sections: int = 128
    units: int = 600

    def __post_init__(self) -> None:
        """Reject less than one section or unit."""
        if self.sections < 1 or self.units < 1:
            raise ValueError(f"sections is {self.sections} and units {self.units}, both must be ≥ 1")

    def solve(self, problem: Problem) -> Solution:
        """The cheapest schedule of the programme within the budget; with few sections if the time is up."""
        return explained(cheapest(problem, self._sequences(problem)))

    def _sequences(self, problem: Problem) -> Iterator[Sequence[int]]:
        deadline = time.monotonic() + problem.time_limit
        base_order = np.flatnonzero(needed_ops(problem.graph)).tolist()
        yield base_order
        keep_all = simulate(problem.graph, Schedule.from_sequence(problem.graph, base_order)).peak
        chain = recognise(problem.graph)
        if isinstance(chain, NoChain) or keep_all <= problem.budget:
            return
        for most in sorted({min(_FEW_SECTIONS, self.sections), self.sections}):
            units = self.units * max(1, self.sections // most)
            yield from _schedules(problem, chain, most, units, keep_all, deadline)
            if chain.length <= most:
                return


class _Rule(NamedTuple):
    """What an interval may begin with: run the forward ops up to section k, then do the rest.

    The rest is on a stack, the last entry first: intervals (i, j, units that are kept meanwhile), and (j,)
    for the backward ops of section j.
    """

    costs: _Floats
    k: int
    rest: tuple[tuple[int, ...], ...]


class NestedSchedules:
    """The table V for all intervals of the sections, and all budgets up to one.

    Args:
        rows: the sections.
        room: bytes for everything but ``rows.base_size``.
        most_units: the most different budgets.
        deadline: give up at this time, as ``time.monotonic()`` counts.

    Raises:
        TimeoutError: if the time is up.

    Attributes:
        budgets: bytes of each column of the table, ascending, the last being ``room``.
        exact: whether no number of bytes is rounded.
    """

    def __init__(self, rows: Sections, room: int, most_units: int, *, deadline: float = math.inf) -> None:
        """Fill the table: shorter intervals first."""
        self.rows = rows.rows
        gcd = rows.unit
        self.unit = gcd * -(-(room // gcd) // most_units) if room >= gcd else gcd
        self.exact = self.unit == gcd
        columns = room // self.unit + 1
        self.budgets = room - self.unit * np.arange(columns, dtype=np.int64)[::-1]
        n = len(self.rows)
        self._cost_before = np.cumsum([0.0, *(row.cost for row in self.rows)])
        self._state = [0, *(row.state for row in self.rows)]
        self._walk = self._walks(n)
        self._value = np.full((n + 1, n + 1, columns), np.inf)
        for i in range(n + 1):
            self._value[i, i] = 0.0
        for length in range(1, n + 1):
            for i in range(n + 1 - length):
                if time.monotonic() > deadline:
                    raise TimeoutError
                best = self._value[i, i + length]
                for rule in self._rules(i, i + length, 0, columns):
                    np.minimum(best, rule.costs, out=best)

    @property
    def costs(self) -> _Floats:
        """Cost of all forward ops for each budget; infinite where it is too small."""
        costs: _Floats = self._value[0, len(self.rows)]
        return costs

    def sequence(self, column: int) -> list[int]:
        """The ops of a schedule of that cost, in order."""
        ops: list[int] = []
        stack: list[tuple[int, ...]] = [(0, len(self.rows), column)]
        while stack:
            i, *interval = stack.pop()
            if not interval:
                ops += self.rows[i - 1].backward
                continue
            j, m = interval
            if i < j:
                best = min(self._rules(i, j, m, m + 1), key=lambda rule: float(rule.costs[0]))
                ops += (v for row in self.rows[i : best.k] for v in row.forward)
                stack += [(*part[:2], m - part[2]) if len(part) > 1 else part for part in best.rest]
        return ops

    def _rules(self, i: int, j: int, low: int, high: int) -> Iterator[_Rule]:
        """The rules for an interval, with their costs for the budgets ``low`` … ``high`` − 1.

        Of all checkpoints only one is given, with the least cost of all; its k is that of the first budget.
        """

        def rule(need: int, k: int, *rest: tuple[int, ...]) -> _Rule:
            costs = sum((self._less(part, low, high) for part in rest if len(part) > 1), self._run(i, k))
            return _Rule(np.where(self.budgets[low:high] >= need, costs, np.inf), k, rest)

        first, last = self.rows[i], self.rows[j - 1]
        x, kept, gradients = self._state[i], self._units(self._state[i]), last.gradients
        read_before = i > 0 and self.rows[i - 1].keeps_output  # by the sections behind this interval
        finish = x + first.back if read_before else first.finish
        finish = max(finish, x + first.save + gradients if first.saves else 0)
        if j == i + 1:
            yield rule(max(finish, x + gradients), j if first.saves else i, (j,))
            return
        if not (last.reads_input or last.saves):
            yield rule(x + last.back, i, (i, j - 1, 0), (j,))
        yield self._checkpoint(i, j, low, high)
        for k in range(i + 1, j + 1):
            row = self.rows[k - 1]
            if row.saves and (k == i + 1 or not row.reads_input):
                peak = max(self._walk[i, k - 1], self._state[k - 1] + row.save) + gradients
                need = finish if k == i + 1 else x + max(peak, row.back)
                yield rule(need, k, (i, k - 1, 0), (k,), (k, j, kept + self._units(row.saved)))
        if not (read_before or first.reads_input):
            need = max(finish, x + first.save + gradients)
            yield rule(need, i + 1, (i + 1,), (i + 1, j, self._units(first.saved)))

    def _checkpoint(self, i: int, j: int, low: int, high: int) -> _Rule:
        costs, k = np.full(high - low, np.inf), i + 1
        x = self._units(self._state[i])
        start = max(low, x)
        if start < high:
            each = self._value[i + 1 : j, j, start - x : high - x] + self._value[i, i + 1 : j, start:high]
            each += self._run(i, slice(i + 1, j))[:, None]
            need = self._state[i] + self._walk[i, i + 1 : j] + self.rows[j - 1].gradients
            each[self.budgets[start:high] < need[:, None]] = np.inf
            costs[start - low :], k = each.min(axis=0), i + 1 + int(each[:, 0].argmin())
        return _Rule(costs, k, ((i, k, 0), (k, j, x)))

    def _run(self, i: int, k: int | slice) -> _Floats:
        """Cost of the forward ops of sections i + 1 … k."""
        cost: _Floats = self._cost_before[k] - self._cost_before[i]
        return cost

    def _less(self, part: tuple[int, ...], low: int, high: int) -> _Floats:
        """V(i, j) for the budgets ``low`` … ``high`` − 1, each less the units of the part (i, j, units)."""
        i, j, units = part
        value = np.full(high - low, np.inf)
        start = max(low, units)
        if start < high:
            value[start - low :] = self._value[i, j, start - units : high - units]
        return value

    def _walks(self, n: int) -> npt.NDArray[np.int64]:
        """Peak of running sections i + 1 … k with nothing kept but state i, which is not counted; [i, k]."""
        walks = np.zeros((n + 1, n + 1), dtype=np.int64)
        for i in range(n):
            peaks = [self.rows[i].walk, *(row.leave for row in self.rows[i + 1 :])]
            walks[i, i + 1 :] = np.maximum.accumulate(peaks)
        return walks

    def _units(self, size: int) -> int:
        return -(-size // self.unit)


def _schedules(
    problem: Problem, chain: Chain, most: int, units: int, keep_all: int, deadline: float
) -> Iterator[Sequence[int]]:
    """Schedules of the programme with at most ``most`` sections."""
    rows = sections(chain, _cuts(chain, most))
    room = problem.budget - rows.base_size
    if room < 0:
        return
    try:
        table = NestedSchedules(rows, room, units, deadline=deadline)
        if not table.exact:
            room = int(min(problem.budget * _MORE_BYTES, keep_all)) - rows.base_size
            table = NestedSchedules(rows, room, units, deadline=deadline)
    except TimeoutError:
        return
    fitting = np.flatnonzero(np.isfinite(table.costs))
    _, first = np.unique(table.costs[fitting], return_index=True)  # of equal costs the least memory
    tries = 1 if table.exact else _ROUNDED_TRIES
    for column in fitting[first[:tries]].tolist():
        yield table.sequence(column)


def _cuts(chain: Chain, most: int) -> list[int]:
    """The ends of sections: evenly spread, at most ``most``, and at most one for each layer."""
    p = chain.length
    n = min(p, most)
    return [round(p * (k + 1) / n) for k in range(n)]

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate import Problem, Solution
from checkmate.analysis import liveness
from checkmate.solving import NEVER, Deadline
from checkmate_solvers.chains.sections import Section, common_unit, sections
from checkmate_solvers.chains.structure import Chain, solve_chain

__all__ = ["ChainDP", "NestedSchedules"]

_FEW_SECTIONS = 32
"""Sections of the first, quick programme."""
_MORE_BYTES = 1.15
"""If bytes are rounded up, and so overestimated, budgets up to this multiple of the real one are tried."""
_ROUNDED_TRIES = 12
"""In that case, at most this many schedules, the cheapest first, are simulated to find one that fits."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainDP:
    """The dynamic programme of this module, for chains of any length.

    A chain of more layers than ``sections`` is cut into that many sections, first into 32. Bytes are counted
    in units: their greatest common divisor if the budget has at most ``units`` of them, more if there are
    fewer sections, so that nothing is rounded; else a larger unit, and kept bytes are rounded up. For a graph
    that is no chain the answer is unknown, unless the base order fits as it is.

    Attributes:
        sections: the most sections; time grows with its third power.
        units: the most units that the budget is counted in; time and memory grow with it.

    >>> from checkmate.generators import chain
    >>> ChainDP().solve(Problem(graph=chain(8), budget=4)).cost
    26.0
    """

    sections: int = 128
    units: int = 600

    def __post_init__(self) -> None:
        if self.sections < 1 or self.units < 1:
            raise ValueError(f"sections is {self.sections} and units {self.units}, both must be ≥ 1")

    def solve(self, problem: Problem) -> Solution:
        """Find the cheapest schedule of the programme; one of few sections if the time is short."""
        return solve_chain(problem, self._schedules)

    def _schedules(self, problem: Problem, chain: Chain) -> Iterator[Sequence[int]]:
        deadline, p = Deadline(problem.time_limit), chain.length
        for n in sorted({min(most, self.sections, p) for most in (_FEW_SECTIONS, self.sections)}):
            rows, base_size = sections(chain, [round(p * k / n) for k in range(1, n + 1)])
            room, units = problem.budget - base_size, self.units * (self.sections // n)
            exact = room // common_unit(rows) <= units
            if not exact:
                keep_all = liveness(problem.graph, chain.order).peak
                room = int(min(problem.budget * _MORE_BYTES, keep_all)) - base_size
            if room < 0:
                continue
            table = NestedSchedules(rows, room, units, deadline=deadline)
            fitting = np.flatnonzero(np.isfinite(table.costs))
            _, first = np.unique(table.costs[fitting], return_index=True)  # of equal costs the least memory
            for column in fitting[first[: 1 if exact else _ROUNDED_TRIES]].tolist():
                yield table.sequence(column)


class _Rule(NamedTuple):
    """How to begin with the interval (i, j), and its costs from column ``first`` on.

    Run the forward ops of the sections i + 1 … ``run``; do the interval (``k``, j) with ``units`` less; run
    the backward ops of the sections ``k`` … ``then`` + 1; do the interval (i, ``then``).
    """

    first: int
    costs: _Floats
    run: int
    k: int
    units: int
    then: int


class NestedSchedules:
    """The table V for all intervals of the sections, and at most ``most_units`` budgets up to ``room`` bytes.

    The room is for everything that a choice can free. If the deadline passes, no schedule is known.

    Attributes:
        budgets: bytes of each column of the table, ascending, the last being ``room``.
        costs: cost of all forward runs for each budget; infinite where the budget is too small.
    """

    def __init__(
        self, rows: Sequence[Section], room: int, most_units: int, *, deadline: Deadline = NEVER
    ) -> None:
        self._rows, n = rows, len(rows)
        gcd = common_unit(rows)
        self._unit = gcd * max(1, -(-(room // gcd) // most_units))
        columns = room // self._unit + 1
        self.budgets = room - self._unit * np.arange(columns, dtype=np.int64)[::-1]
        self._cost_before = np.cumsum([0.0, *(row.cost for row in rows)])
        self._state = [0, *(row.state_size for row in rows)]
        self._walk = np.zeros((n + 1, n + 1), dtype=np.int64)  # of i + 1 … k, only state i being kept
        for i, row in enumerate(rows):
            peaks = [row.walk_peak, *(later.leave_peak for later in rows[i + 1 :])]
            self._walk[i, i + 1 :] = np.maximum.accumulate(peaks)
        self._value = np.full((n + 1, n + 1, columns), np.inf)
        self._value[range(n + 1), range(n + 1)] = 0.0
        self.costs: _Floats = self._value[0, -1]
        for i, j in ((j - length, j) for length in range(1, n + 1) for j in range(length, n + 1)):
            if deadline.passed:
                return
            best = self._value[i, j]
            for rule in self._rules(i, j, 0, columns):
                np.minimum(best[rule.first :], rule.costs, out=best[rule.first :])

    def sequence(self, column: int) -> list[int]:
        """The ops, in order, of the cheapest schedule for the budget of a column."""
        ops: list[int] = []
        stack: list[tuple[int, ...]] = [(0, len(self._rows), column)]
        while stack:
            i, *interval = stack.pop()
            if not interval:
                ops += self._rows[i - 1].backward
                continue
            j, m = interval
            if i < j:
                rules = [rule for rule in self._rules(i, j, m, m + 1) if rule.first == m]
                best = min(rules, key=lambda rule: float(rule.costs[0]))
                ops += (v for row in self._rows[i : best.run] for v in row.forward)
                backward = ((q,) for q in range(best.then + 1, best.k + 1))
                stack += [(i, best.then, m), *backward, (best.k, j, m - best.units)]
        return ops

    def _rules(self, i: int, j: int, low: int, high: int) -> Iterator[_Rule]:
        """The rules for an interval, with their costs from column ``low``, or a later one, to ``high`` − 1.

        All checkpoints are one rule, with the least cost in each column; its k is the best in its first one.
        """
        value, run_cost = self._value, self._cost_before - self._cost_before[i]

        def rule(need: int, run: int, k: int, units: int, then: int) -> _Rule:
            start = min(max(low, units, int(np.searchsorted(self.budgets, need))), high)
            costs = run_cost[run] + value[k, j, start - units : high - units] + value[i, then, start:high]
            return _Rule(start, costs, run, k, units, then)

        first, last = self._rows[i], self._rows[j - 1]
        x, kept, gradients = self._state[i], self._units(self._state[i]), last.gradients_size
        read_before = i > 0 and self._rows[i - 1].keeps_output  # by the sections behind this interval
        finish = x + first.backward_peak if read_before else first.finish_peak
        finish = max(finish, x + first.save_peak + gradients if first.saves else 0)
        if j == i + 1:
            yield rule(max(finish, x + gradients), j if first.saves else i, j, 0, i)
            return
        if not (last.reads_input or last.saves):
            yield rule(x + last.backward_peak, i, j, 0, j - 1)
        yield from self._checkpoint(i, j, max(low, kept), high)
        for k in range(i + 1, j + 1):
            row = self._rows[k - 1]
            if row.saves and (k == i + 1 or not row.reads_input):
                peak = max(self._walk[i, k - 1], self._state[k - 1] + row.save_peak) + gradients
                need = finish if k == i + 1 else x + max(peak, row.backward_peak)
                yield rule(need, k, k, kept + self._units(row.saved_size), k - 1)
        if not (read_before or first.reads_input):
            need = max(finish, x + first.save_peak + gradients)
            yield rule(need, i + 1, i + 1, self._units(first.saved_size), i)

    def _checkpoint(self, i: int, j: int, start: int, high: int) -> Iterator[_Rule]:
        """The rules "checkpoint" of all k in one, unless there is no column."""
        if start >= high:
            return
        value, x, inner = self._value, self._state[i], slice(i + 1, j)
        kept, run_cost = self._units(x), self._cost_before[inner, None] - self._cost_before[i]
        each = value[inner, j, start - kept : high - kept] + value[i, inner, start:high] + run_cost
        need = x + self._walk[i, inner, None] + self._rows[j - 1].gradients_size
        each[self.budgets[start:high] < need] = np.inf
        k = i + 1 + int(each[:, 0].argmin())
        yield _Rule(start, each.min(axis=0), k, k, kept, k)

    def _units(self, size: int) -> int:
        return -(-size // self._unit)

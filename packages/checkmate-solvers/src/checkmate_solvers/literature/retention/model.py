r"""The model: when each op runs, at most C times, and until when each copy of its outputs is held.

Run r of op v starts at event s[v, r], if it takes place: a[v, r]. Run 0 does, at event(v, v); the others run
again. A copy of tensor u, made by run r of its producer p, is held during [s[p, r], e[u, r]).

    min Σ c_v Σ_{r ≥ 1} a[v, r] a[v, r + 1] ≤ a[v, r],   s[v, r] < s[v, r + 1],   e[u, r] ≤ s[p, r + 1]
    each if the later one runs Σ_r b[u, j, i, r] = a[j, i]                                    each reader j of
    u, and each of its runs i b[u, j, i, r] ⇒ a[p, r],  s[p, r] < s[j, i] < e[u, r]          it reads the copy
    r Σ of the sizes of copies held, and of passing bytes of running ops, ≤ room        at all events:
    cumulative

Bartan et al. (ICML 2023) write the reads as one reservoir constraint per edge; the literals b are equivalent,
and were two to five times as fast here. New are ops with several outputs, each held as long as it is needed;
workspace; outputs that come back after the last op; ops that run once only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from checkmate_solvers.literature.retention.grid import Grid, event

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Model"]


class Model:
    """The model of one grid.

    Args:
        grid: the ops, and their events.
        copies: C, how many times an op may run, ≥ 1.

    Attributes:
        cp: for CP-SAT.
    """

    def __init__(self, grid: Grid, copies: int) -> None:
        """Build it."""
        from ortools.sat.python import cp_model

        self.grid, self.cp = grid, cp_model.CpModel()
        self._starts: list[list[cp_model.IntVar]] = []
        self._active: list[list[cp_model.IntVar]] = []
        self._ends: dict[tuple[int, int], cp_model.IntVar] = {}
        self._reads: dict[tuple[int, int, int, int], cp_model.IntVar] = {}
        self._held: list[tuple[cp_model.IntervalVar, int]] = []
        for v in range(grid.graph.n_ops + 1):
            self._run(v, copies)
        for v in range(grid.graph.n_ops):
            self._hold(v)
        for u, readers in grid.readers.items():
            for j in readers:
                self._read(u, j)
        intervals, sizes = zip(*self._held, strict=True) if self._held else ((), ())
        self.cp.add_cumulative(intervals, sizes, grid.capacity)
        self._cost = cp_model.LinearExpr.sum(
            [cost * a for cost, runs in zip(grid.costs, self._active, strict=False) for a in runs[1:]]
        )
        self.cp.minimize(self._cost)

    def start_from(self, sequence: Sequence[int]) -> None:
        """Look for nothing more expensive than a sequence of ops; start there if it is in the model.

        A partial hint misleads CP-SAT: if the sequence is not in the model, no hint is given.
        """
        costs, events = self.grid.costs, self.grid.runs(sequence)
        self.cp.add(self._cost <= sum(costs[v] for v in sequence) - sum(costs))
        in_order = [v for _, v in sorted((s, v) for v, runs in enumerate(events[:-1]) for s in runs)]
        few = all(len(runs) <= len(starts) for runs, starts in zip(events, self._starts, strict=True))
        if few and in_order == list(sequence):
            self._hint(events)

    def sequence(self, value: Callable[[cp_model.IntVar], int]) -> list[int]:
        """The ops in order, for the values of a solution."""
        runs = [
            (value(start), v)
            for v in range(self.grid.graph.n_ops)
            for start, active in zip(self._starts[v], self._active[v], strict=True)
            if value(active)
        ]
        return [v for _, v in sorted(runs)]

    def _run(self, v: int, copies: int) -> None:
        from ortools.sat.python import cp_model

        cp = self.cp
        starts, active = [cp.new_constant(event(v, v))], [cp.new_constant(1)]
        again = cp_model.Domain.from_values(self.grid.again(v) if v < self.grid.graph.n_ops else [])
        for r in range(1, copies if not again.is_empty() else 1):
            starts.append(cp.new_int_var_from_domain(again, f"start {v} {r}"))
            active.append(cp.new_bool_var(f"runs {v} {r}"))
            if r > 1:
                cp.add_implication(active[r], active[r - 1])
                cp.add(starts[r - 1] < starts[r]).only_enforce_if(active[r])
        self._starts.append(starts)
        self._active.append(active)

    def _hold(self, v: int) -> None:
        cp, grid = self.cp, self.grid
        starts, active = self._starts[v], self._active[v]
        for r, (start, runs) in enumerate(zip(starts, active, strict=True)):
            if grid.passing[v]:
                passing = cp.new_optional_fixed_size_interval_var(start, 1, runs, "")
                self._held.append((passing, grid.passing[v]))
            for u in grid.graph.ops[v].outputs:
                if u not in grid.readers:
                    continue
                end = cp.new_int_var(event(v + min(r, 1), v) + 1, grid.end + 1, f"end {u} {r}")
                length = cp.new_int_var(1, grid.end + 1, "")
                self._ends[u, r] = end
                self._held.append((cp.new_optional_interval_var(start, length, end, runs, ""), grid.sizes[u]))
                if r + 1 < len(starts):
                    cp.add(end <= starts[r + 1]).only_enforce_if(active[r + 1])

    def _read(self, u: int, j: int) -> None:
        cp, p = self.cp, int(self.grid.graph.producer[u])
        for i, (reading, reads) in enumerate(zip(self._starts[j], self._active[j], strict=True)):
            copies = []
            for r, (making, made) in enumerate(zip(self._starts[p], self._active[p], strict=True)):
                copy = cp.new_bool_var(f"reads {u} {j} {i} {r}")
                cp.add_implication(copy, made)
                cp.add(making < reading).only_enforce_if(copy)
                cp.add(reading < self._ends[u, r]).only_enforce_if(copy)
                self._reads[u, j, i, r] = copy
                copies.append(copy)
            cp.add(sum(copies) == reads)

    def _hint(self, events: Sequence[Sequence[int]]) -> None:
        for v, (starts, active) in enumerate(zip(self._starts, self._active, strict=True)):
            for r in range(1, len(starts)):
                again = r < len(events[v])
                self.cp.add_hint(active[r], again)
                self.cp.add_hint(starts[r], events[v][r] if again else event(v + 1, v))
        producer = self.grid.graph.producer
        for (u, r), end in self._ends.items():
            made = events[int(producer[u])]
            if r < len(made):
                until = made[r + 1] if r + 1 < len(made) else self.grid.end + 1
                reads = (s for j in self.grid.readers[u] for s in events[j] if made[r] < s < until)
                self.cp.add_hint(end, max(reads, default=made[r]) + 1)
        for (u, j, i, r), read in self._reads.items():
            made = events[int(producer[u])]
            self.cp.add_hint(read, i < len(events[j]) and bisect_left(made, events[j][i]) - 1 == r)

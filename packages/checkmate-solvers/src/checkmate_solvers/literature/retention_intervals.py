r"""MOCCASIN: the model of retention intervals, solved by CP-SAT from a schedule that eviction found.

The model decides when each op runs, at most C times, and until when each copy of its outputs is held. It
covers few of all schedules: base order, each op at most once in a stage, and C times in all. So CP-SAT's own
bound proves nothing about the problem, and neither does "no solution": neither is reported.

Stage k ends with the first run of op k; before it, ops 0 … k − 1 may run again, in base order. So op v in
stage k ≥ v has the number k (k + 1) / 2 + v, its *event*. The end of the schedule counts as one more op, of
number n, that reads the graph outputs.

Run r of op v starts at event s[v, r], if it takes place: a[v, r]. Run 0 does, at event(v, v); the others run
again. A copy of tensor u, made by run r of its producer p, is held during [s[p, r], e[u, r]).

    min Σ c_v Σ_{r ≥ 1} a[v, r]
    a[v, r + 1] ≤ a[v, r],   s[v, r] < s[v, r + 1],   e[u, r] ≤ s[p, r + 1]         each if the later one runs
    Σ_r b[u, j, i, r] = a[j, i]                          each reader j of u, and each of its runs i
    b[u, j, i, r] ⇒ a[p, r],  s[p, r] < s[j, i] < e[u, r]          it reads the copy of run r
    Σ of the sizes of copies held, and of passing bytes of running ops, ≤ room    at all events: cumulative

Bartan, Li, Teague, Lott and Dilkina, "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML
2023, section 2, write the reads as one reservoir constraint per edge; the literals b are equivalent, and were
two to five times as fast here. New are ops with several outputs, each held as long as it is needed;
workspace; outputs that come back after the last op; ops that run once only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from checkmate import DFGraph, Problem, Solution
from checkmate.heuristics import StaticEviction
from checkmate_solvers.engines import require_ortools
from checkmate_solvers.literature.stages import NEEDED_COST, Needed
from checkmate_solvers.search import Incumbent, answer_easy_cases, keep

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Grid", "Model", "RetentionIntervals", "event"]

_NAME = "retention-intervals"
_EVICTION_SHARE = 0.2
"""Share of the time limit for eviction, which finds the schedule to start from."""
_MOST_EVENTS = 2_000_000
"""Events of a model, at most, so that it fits into little memory."""
_EVENTS_PER_S = 100_000
"""Events of a model, at most, for each second of the time limit."""
_MOST_SEED = 2**31
"""CP-SAT's seeds are smaller than this."""
_MOST_PRODUCT = 2**60
"""Units of bytes times events, at most: CP-SAT adds them up in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionIntervals:
    """CP-SAT over retention intervals; the schedule that it starts from can be the answer.

    Attributes:
        copies: C, how many times an op may run. With 1 nothing is recomputed.
        warm_start: begin with a schedule of eviction; False = from nothing, as in the paper.

    Raises:
        MissingDistributionError: if OR-Tools is not installed.
        ValueError: if ``copies`` is less than 1.
    """

    copies: int = 2
    warm_start: bool = True

    def __post_init__(self) -> None:
        require_ortools()
        if self.copies < 1:
            raise ValueError(f"copies is {self.copies}, must be ≥ 1: an op runs at least once")

    def solve(self, problem: Problem) -> Solution:
        """The best schedule found; unknown if there is none, or the graph too large for the time."""
        best = Incumbent(problem)
        if answer_easy_cases(best):
            return best.solution()
        if self.warm_start:
            fixed = replace(
                problem, fixed_order=True, time_limit=_EVICTION_SHARE * problem.time_limit, on_progress=None
            )
            started = StaticEviction().solve(fixed)
            if started.schedule is not None:
                keep(best, started.schedule.sequence.tolist(), "eviction")
        if not best.clock.has_time_for(NEEDED_COST):
            return best.solution()
        needed = Needed(problem.graph, problem.budget)
        grid = Grid(graph=needed.graph, room=needed.room)
        if not best.done and grid.end <= min(_MOST_EVENTS, _EVENTS_PER_S * problem.time_limit):
            self._improve(best, needed, Model(grid, self.copies))
        return best.solution()

    def _improve(self, best: Incumbent, needed: Needed, model: Model) -> None:
        """Keep each solution as it comes; in the end, prune the last one."""
        from ortools.sat.python import cp_model

        if best.sequence is not None:
            place = {v: i for i, v in enumerate(needed.ops)}
            model.start_from([place[v] for v in best.sequence])
        found: list[int] = []

        class KeepEach(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                found[:] = (needed.ops[v] for v in model.sequence(self.value))
                best.keep_if_better(found, _NAME)

        if best.clock.left_s <= 0:
            return
        solver = cp_model.CpSolver()
        settings, problem = solver.parameters, best.problem
        settings.max_time_in_seconds = best.clock.left_s
        settings.num_workers = problem.threads
        settings.interleave_search = problem.threads > 1  # deterministic
        settings.random_seed = problem.seed % _MOST_SEED
        status = solver.solve(model.cp, KeepEach())
        exact = not len(problem.graph.reuses.indices)
        if exact and status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
            best.note(f"{_NAME}: all schedules searched in which no op runs more than {self.copies} times")
        if found:
            keep(best, found, _NAME)


def event(stage: int, op: int) -> int:
    """The number of the moment at which an op runs in a stage.

    >>> [event(stage, op) for stage in range(3) for op in range(stage + 1)]
    [0, 1, 2, 3, 4, 5]
    """
    return stage * (stage + 1) // 2 + op


class Grid:
    """The ops of a graph, all of them needed, with their events, bytes and costs in whole numbers.

    Bytes are counted in units of their greatest common divisor, exactly. Only where bytes × events might
    overflow 64 bits, the unit is larger, and bytes are rounded up. The room does not count graph inputs
    and ``fixed_size``.

    Attributes:
        end: the event at which the schedule ends.
        readers: for each tensor that is made and used, the ops that read it in base order; n = the end.
        last_stage: for each op, the last stage in which running it can be of use.
        sizes: units of each tensor.
        passing: units that an op needs only while it runs: workspace, and outputs without a reader.
        capacity: units of the room.
        costs: whole units of each op: exact if whole and at most 2^20, else the highest is scaled to 2^20.
    """

    def __init__(self, *, graph: DFGraph, room: int) -> None:
        self.graph, self.end = graph, event(graph.n_ops, graph.n_ops)
        end = {u: [graph.n_ops] for u in graph.outputs}
        made = np.flatnonzero(graph.producer >= 0).tolist()
        readers = {u: [*graph.readers.row(u).tolist(), *end.get(u, [])] for u in made}
        self.readers = {u: ops for u, ops in readers.items() if ops}
        self.last_stage = list(range(graph.n_ops + 1))
        for v, op in reversed([*enumerate(graph.ops)]):
            later = (self.last_stage[j] for u in op.outputs for j in self.readers.get(u, []))
            self.last_stage[v] = max([v, *later])
        divisor = math.gcd(*graph.sizes.tolist(), *graph.workspaces.tolist()) or 1
        unit = divisor * max(1, -(-(room // divisor) * (self.end + 1) // _MOST_PRODUCT))
        self.sizes: list[int] = (-(-graph.sizes // unit)).tolist()
        unread = [sum(self.sizes[u] for u in op.outputs if u not in self.readers) for op in graph.ops]
        self.passing: list[int] = (-(-graph.workspaces // unit) + np.array(unread, dtype=np.int64)).tolist()
        self.capacity = room // unit
        highest = float(graph.costs.max(initial=0.0)) or 1.0
        exact = highest <= 2**20 and not (graph.costs % 1).any()
        costs = graph.costs if exact else graph.costs / highest * 2**20
        self.costs: list[int] = np.rint(costs).astype(np.int64).tolist()

    def again(self, v: int) -> list[int]:
        """The events at which op ``v`` may run again, ascending."""
        if not self.graph.ops[v].recomputable:
            return []
        return [event(k, v) for k in range(v + 1, self.last_stage[v] + 1)]

    def runs(self, sequence: Sequence[int]) -> list[list[int]]:
        """The events at which a sequence of ops runs each of them; two runs in one stage count as one."""
        stage, runs = self.graph.n_ops, [*(set[int]() for _ in self.graph.ops), {self.end}]
        first = {v: i for i, v in reversed([*enumerate(sequence)])}
        for i, v in reversed([*enumerate(sequence)]):
            stage = v if first[v] == i else stage
            if stage >= v:
                runs[v].add(event(stage, v))
        return [sorted(events) for events in runs]


class Model:
    """CP-SAT's variables and constraints for one grid, in ``cp``; ``copies`` is C, the most runs of an op."""

    def __init__(self, grid: Grid, copies: int) -> None:
        from ortools.sat.python import cp_model

        self.grid, self.cp = grid, cp_model.CpModel()
        self._starts: list[list[cp_model.IntVar]] = []
        self._active: list[list[cp_model.IntVar]] = []
        self._ends: dict[tuple[int, int], cp_model.IntVar] = {}
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

        A hint that is no solution misleads CP-SAT: if the sequence is not in the model, no hint is given.
        """
        costs, events = self.grid.costs, self.grid.runs(sequence)
        self.cp.add(self._cost <= sum(costs[v] for v in sequence) - sum(costs))
        in_order = [v for _, v in sorted((s, v) for v, runs in enumerate(events[:-1]) for s in runs)]
        few = all(len(runs) <= len(starts) for runs, starts in zip(events, self._starts, strict=True))
        if few and in_order == list(sequence):
            for runs, starts, active in zip(events, self._starts, self._active, strict=True):
                for r in range(1, len(starts)):
                    self.cp.add_hint(active[r], r < len(runs))
                    if r < len(runs):
                        self.cp.add_hint(starts[r], runs[r])

    def sequence(self, value: Callable[[cp_model.IntVar], int]) -> list[int]:
        """The ops in order, from the values of a solution."""
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
                copies.append(copy)
            cp.add(sum(copies) == reads)

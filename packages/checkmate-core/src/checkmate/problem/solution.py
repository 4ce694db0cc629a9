"""The answer to a problem: a judged schedule, a lower bound on the cost, and the proofs.

For the optimum c* of the problem: ``bound ≤ c* ≤ cost``; the gap is ``(cost − bound) / cost``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from checkmate.analysis import needed_ops
from checkmate.errors import SolverError
from checkmate.model.schedule import Schedule
from checkmate.problem.explanation import explanation
from checkmate.problem.pieces import WHOLE, Pieces
from checkmate.problem.problem import Problem
from checkmate.simulate import Timeline, simulate
from checkmate.text.markup import figure, outline, table
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes

__all__ = ["Solution", "Status"]

_TOLERANCE = 1e-9
"""Relative rounding error of costs: a cost this close to the bound counts as equal to it."""


class Status(StrEnum):
    """The result of a search: a schedule was found or not, and proved optimal or not."""

    OPTIMAL = "optimal"  # a schedule, proved cheapest
    FEASIBLE = "feasible"  # a schedule within the budget
    INFEASIBLE = "infeasible"  # proved: there is no schedule
    UNKNOWN = "unknown"  # no schedule found, nothing proved


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Solution:
    """A solver's answer; make it with :meth:`found`, :meth:`infeasible` or :meth:`unknown`.

    Attributes:
        problem: the question.
        status: see :class:`Status`.
        timeline: the judge's replay of the schedule; None if there is no schedule.
        bound: proved lower bound on the cost of any schedule within the budget.
        solver: name of the solver.
        seconds: wall time that the solver took.
        origin: the step of the solver that gave the schedule, and the one that gave the bound, e.g.
            ``{"schedule": "min-cut", "bound": "cut-milp"}``. Further keys: ``"interrupted"``: an interrupt
            ended the search; ``"provisional"``: why the same solver may soon do better; ``"reason"``: why it
            has no schedule.
        lowest: without a schedule, the valid schedule of least peak that the solver met, though above the
            budget; None if it met none.
        pieces: the ops of the graph that are pieces of one op; files don't keep it.
    """

    problem: Problem
    status: Status
    timeline: Timeline | None = None
    bound: float = 0.0
    solver: str = ""
    seconds: float = 0.0
    origin: Mapping[str, str] = field(default_factory=dict)
    lowest: Schedule | None = None
    pieces: Pieces = WHOLE

    @classmethod
    def found(
        cls,
        problem: Problem,
        schedule: Schedule | Timeline,
        *,
        bound: float = 0.0,
        solver: str = "",
        origin: Mapping[str, str] | None = None,
    ) -> Self:
        """A solution with a schedule, which must be valid and have its peak within the budget.

        Args:
            problem: the question.
            schedule: the answer, or its timeline from :func:`checkmate.simulate`, which saves a replay.
            bound: a proved lower bound, raised to the cost of running each needed op once.
            solver: name of the solver; ``checkmate.solve`` fills it in.
            origin: as in the class.

        Raises:
            InvalidScheduleError: if the judge rejects the schedule.
            SolverError: if its peak is over the budget, or the claimed bound is above its cost or not a
                number.
        """
        timeline = schedule if isinstance(schedule, Timeline) else simulate(problem.graph, schedule)
        if timeline.graph is not problem.graph:
            timeline = simulate(problem.graph, timeline.schedule)
        author = f"solver {solver!r}" if solver else "the solver"
        if timeline.peak > problem.budget:
            raise SolverError(
                f"{author} gave a schedule with a peak of {timeline.peak} bytes, "
                f"over the budget of {problem.budget}"
            )
        if not bound <= timeline.cost * (1 + _TOLERANCE):
            raise SolverError(
                f"{author} claims that no schedule costs less than {bound}, but its own costs {timeline.cost}"
            )
        bound = min(max(bound, float(problem.graph.costs[needed_ops(problem.graph)].sum())), timeline.cost)
        optimal = timeline.cost - bound <= _TOLERANCE * timeline.cost
        return cls(
            problem=problem,
            status=Status.OPTIMAL if optimal else Status.FEASIBLE,
            timeline=timeline,
            bound=bound,
            solver=solver,
            origin=dict(origin or {}),
        )

    @classmethod
    def infeasible(cls, problem: Problem, *, solver: str = "") -> Self:
        """A proof that no schedule is within the budget."""
        return cls(problem=problem, status=Status.INFEASIBLE, bound=math.inf, solver=solver)

    @classmethod
    def unknown(
        cls,
        problem: Problem,
        *,
        bound: float = 0.0,
        solver: str = "",
        reason: str = "",
        lowest: Schedule | None = None,
    ) -> Self:
        """No schedule, and no proof that there is none; ``reason`` says why, if that is known."""
        return cls(
            problem=problem,
            status=Status.UNKNOWN,
            bound=bound,
            solver=solver,
            origin={"reason": reason} if reason else {},
            lowest=lowest,
        )

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, or None."""
        return self.timeline.schedule if self.timeline else None

    @property
    def cost(self) -> float:
        """Cost of the schedule; infinite if there is none."""
        return self.timeline.cost if self.timeline else math.inf

    @property
    def overhead(self) -> float:
        """Extra cost over running each op once and whole, as a fraction; infinite without a schedule."""
        return self.pieces.overhead(self.timeline) if self.timeline else math.inf

    @property
    def peak(self) -> int | None:
        """Peak of the schedule in bytes, or None."""
        return self.timeline.peak if self.timeline else None

    @property
    def gap(self) -> float:
        """``(cost − bound) / cost``: the greatest possible distance from the optimum; 0 is proved optimal."""
        if self.timeline is None:
            return math.inf
        return (self.cost - self.bound) / self.cost if self.cost > 0 else 0.0

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt (Ctrl-C) ended the search early; the cache does not keep such a solution."""
        return "interrupted" in self.origin

    @property
    def provisional(self) -> bool:
        """Whether the same problem may soon get a better answer; the cache does not keep such a solution."""
        return self.interrupted or "provisional" in self.origin

    def explain(self, rows: int = 10) -> str:
        """The recomputed ops as a table, the most expensive first; ``report.explain`` gives them as data."""
        if self.timeline is None:
            return f"no schedule ({self.status}): nothing to explain"
        return explanation(self.timeline, self.problem.budget, pieces=self.pieces).text(rows)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The figures of the answer, each a name and a text, for tables."""
        unit, timeline = self.problem.graph.cost_unit, self.timeline
        rows = [("status", str(self.status)), ("solver", clipped(self.solver, 40) or "unnamed")]
        if timeline is not None:
            rows += [
                ("cost", cost_text(timeline.cost, unit)),
                ("overhead", f"{self.overhead:.2%}"),
                ("peak", format_bytes(timeline.peak)),
            ]
        rows.append(("budget", format_bytes(self.problem.budget)))
        if math.isfinite(self.bound):
            rows.append(("proved bound", cost_text(self.bound, unit)))
        if timeline is None:
            return [*rows, ("schedule", "none")]
        rows += [("gap", f"{self.gap:.2%}"), ("solved in", f"{self.seconds:.2f} s")]
        return [*rows, ("recomputed", f"{timeline.recomputes:,} runs")]

    def _repr_html_(self) -> str:
        """The figures, and a picture of the memory over time."""
        graph, memory = self.problem.graph, ""
        if self.timeline is not None:
            caption = "Bytes held at each step of the schedule; dashed: the budget."
            memory = outline(self.timeline.memory, caption, self.problem.budget)
        title = f"Solution for {clipped(graph.name, 60) or 'a graph'} of {graph.n_ops:,} ops"
        return figure(title, table(self.facts, numbers=[1]), memory)

    def __repr__(self) -> str:
        head = f"<Solution: {self.status} by {clipped(self.solver) or '?'}"
        if self.timeline is None:
            return f"{head}, budget {format_bytes(self.problem.budget)}>"
        return (
            f"{head}, peak {format_bytes(self.timeline.peak)} of {format_bytes(self.problem.budget)}, "
            f"overhead {self.overhead:.2%}, gap {self.gap:.2%}, {self.seconds:.2f} s>"
        )

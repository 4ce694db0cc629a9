"""The frontier: the least cost at each peak.

    c*(b) = min cost(σ)  over schedules σ with  peak(σ) ≤ b

never rises with b. So a schedule for a small budget also serves a larger one, and a lower bound for a large
budget also holds for a smaller one: every answer contributes to all budgets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from checkmate.errors import SolverError
from checkmate.model.graph import DFGraph
from checkmate.problem.problem import keep_all_peak
from checkmate.problem.solution import Solution, Status
from checkmate.text.markup import figure, table
from checkmate.units import Budget, format_bytes, parse_budget

__all__ = ["Failure", "Frontier", "disproves"]

_TOLERANCE = 1e-9
_ROWS = 30
_HEAD = ("peak", "overhead", "gap", "solver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A solve without a usable answer, and the reason.

    Attributes:
        budget: the budget of the solve, in bytes.
        solver: name of the solver.
        error: the error.
    """

    budget: int
    solver: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Frontier:
    """All answers for one graph over all budgets, and the best of them.

    An answer whose lower bound is disproved by the schedule of another becomes one of the ``errors``.

    Attributes:
        graph: the graph.
        answers: every judged answer, those without a schedule included, in the order of the questions.
        errors: the failed solves.
        points: the answers that no other beats in both peak and cost, each as the answer to the least budget
            that it meets, its own peak; peaks ascend, costs strictly descend.
    """

    graph: DFGraph
    answers: tuple[Solution, ...]
    errors: tuple[Failure, ...] = ()
    points: tuple[Solution, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Move disproved answers to the errors, then drop dominated ones."""
        best = _staircase(self.answers)
        wrong = {k: fault for k, answer in enumerate(self.answers) if (fault := _disproved(answer, best))}
        sound = tuple(answer for k, answer in enumerate(self.answers) if k not in wrong)
        object.__setattr__(self, "answers", sound)
        object.__setattr__(self, "errors", (*self.errors, *wrong.values()))
        points = tuple(self._restated(answer, max(answer.peak or 0, 1)) for answer in _staircase(sound))
        object.__setattr__(self, "points", points)

    @property
    def summary(self) -> str:
        """The number of points, and why other answers and budgets have none.

        >>> from checkmate import DFGraph, sweep
        >>> pair = DFGraph.from_nodes(cost=[1, 1], size=[2, 2], deps=[[], [0]])
        >>> sweep(pair, [1, 4, 5], ["heuristics"]).summary
        '1 point of 3 answers (1 infeasible, 1 no cheaper than a schedule with less memory), 0 errors'
        """
        infeasible = sum(answer.status is Status.INFEASIBLE for answer in self.answers)
        unknown = sum(answer.status is Status.UNKNOWN for answer in self.answers)
        beaten = len(self.answers) - len(self.points) - infeasible - unknown
        reasons = {
            "infeasible": infeasible,
            "without a schedule": unknown,
            "no cheaper than a schedule with less memory": beaten,
        }
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        answers = _counted(len(self.answers), "answer") + (f" ({why})" if why else "")
        return f"{_counted(len(self.points), 'point')} of {answers}, {_counted(len(self.errors), 'error')}"

    def at(self, budget: Budget) -> Solution | None:
        """The cheapest schedule known whose peak is within ``budget``, or None.

        The budget is as in :func:`checkmate.solve`. The bound is the best proved for it or a larger budget.

        Raises:
            BudgetError: if the budget can't be read or is not positive.
        """
        size = parse_budget(budget, keep_all_peak(self.graph))
        fitting = [point for point in self.points if (point.peak or 0) <= size]
        return self._restated(fitting[-1], size) if fitting else None

    def _restated(self, answer: Solution, budget: int) -> Solution:
        """The schedule of ``answer`` as an answer to ``budget``, with the best bound proved for that."""
        proofs = [other for other in self.answers if other.problem.budget >= budget]
        proof = max(proofs, key=lambda other: other.bound, default=None)
        bound, origin = 0.0, answer.origin
        if proof is not None and proof.bound > 0:
            bound = min(proof.bound, answer.cost)
            origin = {**origin, "bound": proof.origin.get("bound", proof.solver)}
        assert answer.schedule is not None
        found = Solution.found(
            dataclasses.replace(answer.problem, budget=budget),
            answer.schedule,
            bound=bound,
            solver=answer.solver,
            origin=origin,
        )
        return dataclasses.replace(found, seconds=answer.seconds)

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Peak, overhead, gap and solver of the first points."""
        return [
            (format_bytes(p.peak or 0), f"{p.overhead:.2%}", f"{p.gap:.2%}", p.solver)
            for p in self.points[:_ROWS]
        ]

    @property
    def _rest(self) -> str:
        more = len(self.points) - _ROWS
        return f"… and {more} more" if more > 0 else ""

    def _repr_html_(self) -> str:
        """The points as a table."""
        rows = table(self._rows(), _HEAD, numbers=range(3))
        return figure(f"Frontier: {self.summary}", rows if self.points else "", f"<p>{self._rest}</p>")

    def __repr__(self) -> str:
        lines = [_HEAD, *self._rows()] if self.points else []
        aligned = [f"{peak:>12} {extra:>9} {gap:>8}  {solver}" for peak, extra, gap, solver in lines]
        return "\n".join(filter(None, [f"<Frontier: {self.summary}>", *aligned, self._rest]))


def disproves(cost: float, bound: float) -> bool:
    """Whether a schedule of this cost shows that a lower bound is wrong, rounding aside."""
    return bound > cost * (1 + _TOLERANCE)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _staircase(answers: Iterable[Solution]) -> list[Solution]:
    """The answers with a schedule that none beats in both peak and cost; peaks ascend, costs descend."""
    stairs: list[Solution] = []
    found = [answer for answer in answers if answer.timeline is not None]
    for answer in sorted(found, key=lambda answer: (answer.peak or 0, answer.cost)):
        if not stairs or answer.cost < stairs[-1].cost:
            stairs.append(answer)
    return stairs


def _disproved(answer: Solution, stairs: list[Solution]) -> Failure | None:
    """A failure, if some schedule within the budget of ``answer`` costs less than its lower bound."""
    cheapest = next((s for s in reversed(stairs) if (s.peak or 0) <= answer.problem.budget), None)
    if cheapest is None or not disproves(cheapest.cost, answer.bound):
        return None
    budget = answer.problem.budget
    claim = (
        "there is no schedule" if math.isinf(answer.bound) else f"no schedule costs less than {answer.bound}"
    )
    message = (
        f"solver {answer.solver!r} claims that {claim} within {budget} bytes, but {cheapest.solver!r} "
        f"found one that costs {cheapest.cost} with a peak of {cheapest.peak} bytes"
    )
    return Failure(budget=budget, solver=answer.solver, error=SolverError(message))

"""What can be asked of a thing with plans: where the bytes of its peak are, what it recomputes, and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from checkmate.errors import NoPlanError
from checkmate.plugins import EXPORTERS, exporter_for
from checkmate.report.account import Account
from checkmate.report.explanation import Explanation, explain
from checkmate.report.peak import PeakReport, peak_report
from checkmate.solution import Solution

__all__ = ["Measured", "PlanLike", "Planned"]


class PlanLike(Protocol):
    """What a plan must tell to be shown."""

    @property
    def solution(self) -> Solution:
        """The judged schedule."""
        ...

    @property
    def account(self) -> Account:
        """What each byte is held for."""
        ...

    @property
    def modules(self) -> Sequence[str]:
        """Where in the model each op of the graph comes from; empty if nobody knows."""
        ...

    @property
    def plain_peak(self) -> int | None:
        """Predicted peak of the plain program, in bytes; None where that is the graph's base order."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """What else must be known of the predicted peak, a sentence each."""
        ...


class Measured(Protocol):
    """A meter that was around one step."""

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        ...


_Plan = TypeVar("_Plan", bound=PlanLike)


class Planned(Generic[_Plan]):
    """Something with :attr:`plans`, whose plans can be shown."""

    @property
    def plans(self) -> tuple[_Plan, ...]:
        """The plans so far, one for each kind of inputs that was trained with."""
        raise NotImplementedError

    def report(self, measured: Measured | None = None, *, plan: int = -1) -> PeakReport:
        """Where every byte of the step's peak is: a table when printed.

        Args:
            measured: a meter around one step, whose peak is set beside the predicted one.
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
        """
        chosen = self._plan(plan)
        peak = measured.peak if measured is not None else None
        return peak_report(
            chosen.solution,
            chosen.account,
            measured=peak,
            plain_peak=chosen.plain_peak,
            remarks=chosen.remarks,
        )

    def explain(self, *, plan: int = -1) -> Explanation:
        """What is recomputed and why, the dearest first: bytes brought back, cost paid; a table when printed.

        Args:
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
        """
        chosen = self._plan(plan)
        return explain(chosen.solution, chosen.modules)

    def save_report(self, path: str | os.PathLike[str], *, plan: int = -1) -> None:
        """Write the plan by the exporter of the file's suffix.

        ``.html`` is a page of its own, ``.perfetto.json`` a trace; ``checkmate plugins`` lists them all.

        Args:
            path: where to.
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
            PluginError: if no exporter has this suffix.
        """
        solution = self._plan(plan).solution
        if solution.timeline is not None:
            exporter = EXPORTERS.load(exporter_for(path).name)
            exporter.write(solution.timeline, Path(path), budget=solution.problem.budget)

    def _plan(self, index: int) -> _Plan:
        try:
            return self.plans[index]
        except IndexError:
            raise NoPlanError(
                f"there is no plan {index}, {len(self.plans)} so far: a plan is made when inputs of its kind "
                "are first met, with gradients"
            ) from None

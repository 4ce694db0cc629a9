"""Reports of an object with plans: the bytes at its peak, and each recomputation with its reason."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from checkmate.errors import NoPlanError
from checkmate.plugins import EXPORTERS, exporter_for
from checkmate.problem.solution import Solution
from checkmate.report.account import Account
from checkmate.report.explanation import Explanation, explain
from checkmate.report.peak import PeakReport, peak_report

__all__ = ["HasPlans", "Measured", "PlanLike"]


class PlanLike(Protocol):
    """The attributes of a plan that reports read."""

    @property
    def solution(self) -> Solution:
        """The judged schedule."""
        ...

    @property
    def account(self) -> Account:
        """The use of each byte."""
        ...

    @property
    def modules(self) -> Sequence[str]:
        """The part of the model that each op of the graph comes from; empty if unknown."""
        ...

    @property
    def plain_peak(self) -> int | None:
        """Predicted peak of the plain program, in bytes; None where that is the graph's base order."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Further facts about the predicted peak, a sentence each."""
        ...


class Measured(Protocol):
    """A meter that was around one step."""

    @property
    def peak(self) -> int:
        """The largest number of bytes held at once."""
        ...


_Plan = TypeVar("_Plan", bound=PlanLike)


class HasPlans(Generic[_Plan]):
    """An object with :attr:`plans` that can be reported, explained and exported."""

    @property
    def plans(self) -> tuple[_Plan, ...]:
        """The plans so far, one for each kind of inputs that was trained with."""
        raise NotImplementedError

    def report(self, measured: Measured | None = None, *, plan: int = -1) -> PeakReport:
        """The use of every byte at the step's peak; prints as a table.

        Args:
            measured: a meter around one step; its peak is printed beside the predicted one.
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
        """Each recomputed op, the most expensive first: times computed, bytes saved, extra seconds, and why.

        Prints as a table.

        Args:
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
        """
        chosen = self._plan(plan)
        return explain(chosen.solution, chosen.modules)

    def save_report(self, path: str | os.PathLike[str], *, plan: int = -1) -> Path:
        """Write the plan with the exporter of the file's suffix.

        ``.html`` is a self-contained page, ``.perfetto.json`` a trace; ``checkmate plugins`` lists them all.

        Args:
            path: of the file to write.
            plan: which of :attr:`plans`; default the last.

        Returns:
            The path of the file.

        Raises:
            NoPlanError: before the first call with gradients.
            PluginError: if no exporter has this suffix.
        """
        solution, file = self._plan(plan).solution, Path(path)
        if solution.timeline is None:
            raise NoPlanError("this plan has no schedule")
        EXPORTERS.load(exporter_for(path).name).write(solution.timeline, file, budget=solution.problem.budget)
        return file

    def _plan(self, index: int) -> _Plan:
        plans = self.plans
        if not plans:
            raise NoPlanError("nothing planned yet: run one training step first")
        try:
            return plans[index]
        except IndexError:
            raise NoPlanError(
                f"there is no plan {index}, {len(plans)} so far: each new kind of inputs adds one"
            ) from None

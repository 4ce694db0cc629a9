"""What can be asked of a thing with plans: where the bytes of its peak are, what it recomputes, and why."""

from __future__ import annotations

import os
from pathlib import Path

from checkmate import CheckmateError
from checkmate.plugins import exporter_for, load_exporter
from checkmate_torch.backend import Plan
from checkmate_torch.meter import MemoryMeter
from checkmate_torch.report import Explanation, PeakReport, explain, module_of, report
from checkmate_torch.snapshot import Snapshot, predicted_snapshot

__all__ = ["NoPlanError", "Planned"]


class NoPlanError(CheckmateError, LookupError):
    """What was asked about has not been planned yet."""


class Planned:
    """Something with :attr:`plans`, whose plans can be shown."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans so far: one for each kind of inputs that was trained with."""
        raise NotImplementedError

    def report(self, measured: MemoryMeter | None = None, *, plan: int = -1) -> PeakReport:
        """Where every byte of the step's peak is: a table when printed.

        Args:
            measured: a meter around one step, whose peak is set beside the predicted one.
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
        """
        chosen = self._plan(plan)
        peak = measured.peak if measured is not None else None
        return report(chosen.solution, chosen.account, measured=peak, lowering=chosen.lowering)

    def explain(self, *, plan: int = -1) -> Explanation:
        """What is recomputed and why, the dearest first: bytes brought back, cost paid; a table when printed.

        Args:
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
        """
        chosen = self._plan(plan)
        return explain(chosen.solution, modules=[module_of(node) for node in chosen.traced.nodes])

    def save_report(self, path: str | os.PathLike[str], *, plan: int = -1) -> None:
        """Write the plan by the exporter of the file's suffix.

        ``.html`` is a page of its own, ``.perfetto.json`` a trace, ``.memory_viz.json`` PyTorch's snapshot;
        ``checkmate plugins`` lists them all.

        Args:
            path: where to.
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
            PluginError: if no exporter has this suffix.
        """
        solution = self._plan(plan).solution
        if solution.timeline is not None:
            exporter = load_exporter(exporter_for(path).name)
            exporter.write(solution.timeline, Path(path), budget=solution.problem.budget)

    def memory_snapshot(self, *, plan: int = -1) -> Snapshot:
        """The predicted timeline as PyTorch's memory viewer reads it; tensors are coloured by what they are.

        ``torch.cuda._memory_viz.trace_plot(compiled.memory_snapshot())`` makes a page of it.

        Args:
            plan: which of :attr:`plans`; default the last.

        Raises:
            NoPlanError: before the first call with gradients.
        """
        chosen = self._plan(plan)
        if chosen.solution.timeline is None:
            raise NoPlanError("this plan has no schedule")
        return predicted_snapshot(chosen.solution.timeline, chosen.account.kinds)

    def _plan(self, index: int) -> Plan:
        try:
            return self.plans[index]
        except IndexError:
            raise NoPlanError(
                f"there is no plan {index}, {len(self.plans)} so far: a plan is made when inputs of its kind "
                "are first met, with gradients"
            ) from None

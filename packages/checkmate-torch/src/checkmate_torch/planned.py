"""What can be asked of a module or step with plans, PyTorch's own picture of them included."""

from __future__ import annotations

from checkmate import NoPlanError
from checkmate.report import Planned
from checkmate_torch.backend import Plan
from checkmate_torch.snapshot import Snapshot, predicted_snapshot

__all__ = ["Viewable"]


class Viewable(Planned[Plan]):
    """Something with plans, which PyTorch's memory viewer can show too."""

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

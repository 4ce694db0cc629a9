"""The settings of TensorFlow's entry points: the common ones of both frameworks, and TensorFlow's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, get_args

from checkmate import DFGraph
from checkmate.framework import Options as CommonOptions
from checkmate.framework import Settings as CommonSettings
from checkmate_tf.memory.allocator import Counts

__all__ = ["Counts", "Options", "Settings"]

_LEAST_S = 2.0
"""The least usual seconds of the solver."""
_OP_S = 1.5e-3
"""Usual seconds of the solver for each op. In networks of 1,300 to 3,200 ops, solving on to 15 seconds made
a step at most 0.15 % faster, near the least budget 0.4 %."""
_STEPS = 10
"""The solver usually gets at least the time of this number of training steps."""


class Settings(CommonSettings, total=False):
    """Keyword settings of the entry points that solve: the common ones, and these.

    Attributes:
        time_limit: seconds for the solver, for each plan; 10 by default. The solver usually takes 1.5 ms for
            each op, or the time of 10 steps. It takes all of the default only if it finds no schedule
            earlier, or the step is large.
        counts: the bytes that the budget bounds. ``"live"``: all tensors and workspaces that are alive at
            once. ``"allocator"``: the memory that TensorFlow's allocator needs for them, which is 3 to 30 %
            more, because chunks are larger than tensors and free memory is in pieces. The default is
            ``"allocator"`` where that memory has a physical limit, on a GPU and on a CPU with
            ``TF_CPU_BFC_MEM_LIMIT_IN_MB``, and ``"live"`` elsewhere.
    """

    time_limit: float
    counts: Counts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(CommonOptions):
    """The settings of one entry point, read and checked; ``counts`` as in :class:`Settings`."""

    counts: Counts | None = None

    @classmethod
    def parse(cls, *, counts: Counts | None = None, **settings: Any) -> Self:
        """Read settings as users write them, so that a mistake shows before anything is traced.

        Raises:
            ValueError: if ``counts`` is neither ``"live"`` nor ``"allocator"``.
        """
        if counts not in (None, *get_args(Counts)):
            raise ValueError(f"counts is {counts!r}, must be one of {', '.join(map(repr, get_args(Counts)))}")
        return super(Options, cls).parse(counts=counts, **settings)  # explicit: slots make a new class

    def usual_s(self, graph: DFGraph) -> float:
        """Seconds in which the solver usually finds its best schedule, or the user's own time limit."""
        if self.time_limit != Options().time_limit:
            return self.time_limit
        step_s = graph.ideal_cost if graph.cost_unit == "s" else 0.0
        return min(self.time_limit, max(_LEAST_S, _OP_S * graph.n_ops, _STEPS * step_s))

"""The plan of one step: its schedule, the program that runs, and its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from checkmate import DFGraph, Schedule, Solution
from checkmate.report import Account, HasPlans
from checkmate.units import format_bytes
from checkmate_tf.memory.allocator import Counts
from checkmate_tf.planning.priced_step import PricedStep
from checkmate_tf.running.program import Program
from checkmate_tf.tracing.step_graph import TracedGraph

__all__ = ["StepPlan"]

_EXPECTED: Mapping[Counts, str] = {
    "live": "counted kernel by kernel, small tensors included",
    "allocator": "the memory that the allocator needs for all chunks",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StepPlan(HasPlans["StepPlan"]):
    """The plan of one step.

    Attributes:
        step: the step with the cost and the bytes of each op.
        solution: the checked schedule.
        schedule: the schedule that runs: the solution's, without computes in vain, each tensor freed as early
            as is legal.
        account: the use of each byte.
        program: the kernels in the order in which they run.
        plain_peak: predicted bytes of the step as TensorFlow runs it without a plan, counted as the budget
            is. A budget of 60 % is a share of these.
        expected: bytes that the program is expected to need at its peak, counted kernel by kernel. As live
            bytes, this is about the simulator's peak plus small tensors, which the graph leaves out.
    """

    step: PricedStep
    solution: Solution
    schedule: Schedule
    account: Account
    program: Program
    plain_peak: int
    expected: int

    @property
    def plans(self) -> tuple[StepPlan, ...]:
        """This plan alone: reports take an object with plans."""
        return (self,)

    @property
    def traced(self) -> TracedGraph:
        """The traced step; ``traced.captured`` holds TensorFlow's ops."""
        return self.step.traced

    @property
    def graph(self) -> DFGraph:
        """The graph that was solved: the priced step with the bytes that are reserved."""
        return self.solution.problem.graph

    modules: ClassVar[Sequence[str]] = ()
    """Empty: the names of TensorFlow's ops say where they come from."""

    @property
    def remarks(self) -> Sequence[str]:
        """Lines for reports: the expected peak, and the number of ops whose bytes are not counted."""
        remark = f"{format_bytes(self.expected)} are expected: {_EXPECTED[self.step.counts]}"
        unknown = [op.name for op in self.traced.uncounted]
        if not unknown:
            return (remark,)
        return (
            remark,
            f"not counted: bytes that {len(unknown)} ops hold, because their number depends on data; "
            f"reserve= makes room for them; the first op is {unknown[0]!r}",
        )

    @property
    def needed(self) -> int:
        """The least budget that the plan stays within, in bytes."""
        return max(self.expected, self.solution.peak or 0)

    def __repr__(self) -> str:
        """The solution in one line."""
        return f"<StepPlan: {self.solution!r}>"

"""The plan of one traced graph, with its reports; or a schedule that is given instead of decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from checkmate import (
    DFGraph,
    NoPlanError,
    Problem,
    Schedule,
    Solution,
    UnsupportedModelError,
    keep_all_peak,
    simulate,
)
from checkmate.framework import differences
from checkmate.report import Account, HasPlans, Kind
from checkmate.units import format_bytes
from checkmate_torch.memory.account import module_of
from checkmate_torch.memory.snapshot import Snapshot, predicted_snapshot
from checkmate_torch.ops.capturable import Capturable
from checkmate_torch.planning.divided import Divided
from checkmate_torch.planning.nested_calls.calls import Decision
from checkmate_torch.running.fusing import Fusion
from checkmate_torch.running.graph_writer import Watch
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["GivenSchedule", "StepPlan", "Viewable"]

_NOT_FOLLOWED = (
    "the peak of plain PyTorch could not be predicted: that of the planned graph without recomputation takes "
    "its place, also where the budget is a share"
)
_BETWEEN = "the budget does not bound the tensors of the code between the calls of a step"


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class StepPlan:
    """The decision for one traced graph.

    Attributes:
        traced: the joint graph and its DFGraph.
        solution: the checked schedule; ``solution.peak`` is the predicted peak of the whole step in bytes.
        account: the use of each byte.
        fusion: the program of fused kernels that runs it; None = each op runs alone.
        plain_peak: predicted peak of plain PyTorch, in bytes; None = unknown: the peak of the graph's base
            order is used instead.
        loss_guess: bytes that a rule of thumb charges for a loss outside of the model.
        decision: made together with the other calls of a step, if there are some.
        divided: what runs in pieces; None = nothing does.
        capturable: whether it can be one CUDA graph; None = not asked.
        in_graph: whether it is one.
    """

    traced: TracedGraph
    solution: Solution
    account: Account = field(default_factory=Account)
    fusion: Fusion | None = None
    plain_peak: int | None = None
    loss_guess: int = 0
    decision: Decision | None = None
    divided: Divided | None = None
    capturable: Capturable | None = None
    in_graph: bool = False

    @property
    def plain_bytes(self) -> int:
        """The predicted peak of plain PyTorch."""
        graph = self.solution.problem.graph
        return keep_all_peak(graph) if self.plain_peak is None else self.plain_peak

    @property
    def peak(self) -> int:
        """The predicted peak of what runs: of the schedule, or of its program of fused kernels."""
        if self.fusion is None:
            return self.solution.peak or 0
        charged = self.solution.problem.graph.fixed_size - self.fusion.timeline.graph.fixed_size
        return self.fusion.timeline.peak + charged

    def charged(self, kind: Kind, size: int, budget: int | None) -> StepPlan | None:
        """The plan with at least ``size`` bytes of a kind held throughout; None if the budget has no room.

        Args:
            kind: the use of the bytes.
            size: bytes.
            budget: bytes; None = its own.
        """
        fixed = dict(self.account.fixed)
        more = size - fixed.get(kind, 0)
        if more <= 0:
            return self
        problem, plain = self.solution.problem, self.plain_bytes + more
        budget = problem.budget if budget is None else budget
        if self.solution.schedule is None or self.peak + more > budget:
            return None
        graph = replace(problem.graph, fixed_size=problem.graph.fixed_size + more)
        solution = replace(
            self.solution,
            problem=replace(problem, graph=graph, budget=budget),
            timeline=simulate(graph, self.solution.schedule),
        )
        fixed[kind] = size
        return replace(
            self,
            traced=replace(self.traced, graph=graph),
            solution=solution,
            account=replace(self.account, fixed=fixed),
            plain_peak=None if self.plain_peak is None else plain,
        )

    @property
    def modules(self) -> list[str]:
        """The part of the model that each op of the graph comes from, as far as PyTorch knows; else empty."""
        return [module_of(node) for node in self.traced.nodes]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Further facts about the predicted peak."""
        guess = (
            f"loss outside of the model: {format_bytes(self.loss_guess)} are a rule of thumb; pass loss= or "
            "loss_bytes="
        )
        remarks = {
            _NOT_FOLLOWED: self.plain_peak is None,
            guess: self.loss_guess > 0,
            f"{self.decision}; {_BETWEEN}": self.decision is not None and self.decision.n_calls > 1,
            str(self.fusion): self.fusion is not None,
            "the step is captured as one CUDA graph": self.in_graph,
            str(self.capturable): self.capturable is not None
            and not self.in_graph
            and self.capturable.on_gpu,
        }
        in_pieces = [] if self.divided is None else self.divided.in_words()
        return (*(remark for remark, holds in remarks.items() if holds), *in_pieces)


class Viewable(HasPlans[StepPlan]):
    """An object with plans, which PyTorch's memory viewer can show too."""

    def memory_snapshot(self, *, plan: int = -1) -> Snapshot:
        """The predicted timeline as PyTorch's memory viewer reads it; tensors are coloured by kind.

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenSchedule:
    """A schedule that was decided before the model is captured.

    Attributes:
        graph: the priced graph that it is for.
        schedule: a valid schedule of the graph.
        watch: called with each op right before it runs; None = nothing is called.
        others: schedules for other graphs that may be captured instead.
    """

    graph: DFGraph
    schedule: Schedule
    watch: Watch | None = None
    others: tuple[GivenSchedule, ...] = ()

    def differs(self, graph: DFGraph) -> str:
        """Why the schedule can't run on a graph; empty if it can."""
        return differences(graph, self.graph)

    def priced(self, graph: DFGraph) -> DFGraph:
        """Check that a newly traced graph is the known one; returns it with the known costs.

        Raises:
            UnsupportedModelError: if the new graph is of another step.
        """
        given = self._of(graph)
        if why := given.differs(graph):
            raise UnsupportedModelError(
                f"the step is not the one that was traced: {why}. Trace the model as it is now, with inputs "
                "of the shapes to train with, and solve that graph"
            )
        return replace(given.graph, fixed_size=graph.fixed_size)

    def _of(self, graph: DFGraph) -> GivenSchedule:
        return next((each for each in self.others if not each.differs(graph)), self)

    def solution(self, graph: DFGraph) -> Solution:
        """The schedule as a solution whose budget is the schedule's own peak."""
        timeline = simulate(graph, self._of(graph).schedule)
        problem = Problem(
            graph=graph, budget=max(1, timeline.peak), fixed_order=timeline.schedule.keeps_base_order
        )
        return Solution.found(problem, timeline, solver="given")

"""Decide what each part of a sharded model keeps, so that a rank's whole step stays within the budget.

    step on fake tensors ↦ calls of parts ↦ schedules of each ↦ a choice ↦ rehearsal ↦ a better choice ↦ …

A rehearsal, in which FSDP's own code runs, tells the bytes at each moment under a choice. What another choice
would need there follows from what its schedules hold. So a few rehearsals are enough, and the last one says
whether the choice is within the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from checkmate import DFGraph, InfeasibleBudgetError, Schedule, UnsupportedModelError
from checkmate.report import Kind, PeakReport
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.costs.price import workspaces_of
from checkmate_torch.costs.workspaces import library_bytes
from checkmate_torch.distributed.ranks import Ranks, largest_of, numbers_of_first
from checkmate_torch.memory.sharded_step import RecordedCall, Rehearsal, ShardedPeak
from checkmate_torch.planning.decide import Whole, budget_bytes
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.sharded.choose import Moments, chosen, least
from checkmate_torch.planning.sharded.parts import (
    Item,
    PartGraph,
    item_of,
    menu_of,
    parts_of,
    refuse_sharding,
    traced_part,
)
from checkmate_torch.planning.step_plan import GivenSchedule
from checkmate_torch.private import FakeTensorMode, shard_alike, unsharded_twin

__all__ = ["PartSchedule", "ShardedPlan", "ShardedSearch", "ShardedTwin"]

_REHEARSALS = 8
"""The most rehearsals that look for a choice within a budget, and for the one of the least peak."""
_NOT_PLANNED = "%s can't be captured, so that it runs as plain PyTorch within the budget: %s"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartSchedule:
    """The schedule of a part's call.

    Attributes:
        name: path of the module in the model.
        graph: priced.
        schedule: of the graph.
        overhead: extra cost as a share of the part's cost without recomputation.
    """

    name: str
    graph: DFGraph
    schedule: Schedule
    overhead: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardedPlan:
    """The decision for a rank's step.

    Attributes:
        budget: of the whole step, in bytes.
        peak: predicted, in bytes.
        by_kind: bytes of each kind at the peak, largest first.
        plain_peak: predicted peak of the step without Checkmate, in bytes.
        parts: the schedule of each call of a part, in the order of their forward passes.
        overhead: extra cost of all parts, as a share of their cost without recomputation.
        unplanned: parts that run as plain PyTorch, with the reason.
    """

    budget: int
    peak: int
    by_kind: Mapping[Kind, int]
    plain_peak: int
    parts: tuple[PartSchedule, ...]
    overhead: float
    unplanned: Mapping[str, str] = field(default_factory=dict)

    def report(self, measured: int | None = None) -> PeakReport:
        """The bytes of the peak by kind; prints as a table."""
        return PeakReport(
            budget=self.budget,
            peak=self.peak,
            measured=measured,
            plain_peak=self.plain_peak,
            overhead=self.overhead,
            op="the step of this rank",
            by_kind=dict(self.by_kind),
            largest=(),
            status="found",
            remarks=tuple(_NOT_PLANNED % item for item in self.unplanned.items()),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class ShardedTwin:
    """A sharded model on fake tensors, and the same unsharded.

    Attributes:
        sharded: with FSDP's hooks, which send nothing.
        whole: without them; its parameters have the dtypes of the gathered ones.
        mode: of the fake tensors.
        rehearsal: runs steps of ``sharded``.
        names: paths of the parts.
    """

    sharded: nn.Module
    whole: nn.Module
    mode: FakeTensorMode
    rehearsal: Rehearsal
    names: list[str]

    @classmethod
    def of(
        cls, model: nn.Module, mode: FakeTensorMode, options: Options, loss: Loss | None = None
    ) -> ShardedTwin:
        """The twin of a sharded model.

        Raises:
            UnsupportedModelError: if it is sharded in a way that can't be planned.
        """
        refuse_sharding(model)
        sharded = unsharded_twin(model, mode)
        names = [name for name, _ in parts_of(model)]
        device = next((p.device for p in sharded.parameters()), torch.device("cpu"))
        rehearsal = Rehearsal(
            sharded,
            [sharded.get_submodule(name) for name in names],
            options.fixed | {Kind.LIBRARIES: library_bytes(device)},
            loss or options.loss or options.loss_bytes,
        )
        with mode:
            shard_alike(model, sharded, rehearsal.comm)
        whole = unsharded_twin(model, mode, computes=True)
        return cls(sharded=sharded, whole=whole, mode=mode, rehearsal=rehearsal, names=names)


@dataclass(kw_only=True, eq=False)
class ShardedSearch:
    """The calls of a step's parts with their menus, and rehearsals of choices from them.

    Attributes:
        twin: the model.
        arguments: its positional and keyword arguments, on fake tensors.
        options: how to plan.
        calls: of parts, in order.
        graphs: for each call that can be planned, by its number, the part's graph.
        unplanned: parts that can't be captured, and why.
        workspaces: of ops, by their keys.
        plain: the peak without Checkmate.
    """

    twin: ShardedTwin
    arguments: tuple[Sequence[Any], Mapping[str, Any]]
    options: Options
    calls: list[RecordedCall]
    graphs: dict[int, PartGraph]
    unplanned: dict[str, str]
    workspaces: Mapping[object, int]
    plain: ShardedPeak
    _tried: dict[tuple[int, ...], _Choice] = field(default_factory=dict)

    @classmethod
    def of(
        cls, twin: ShardedTwin, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options
    ) -> ShardedSearch:
        """Rehearse a step, and trace the calls of its parts."""
        with twin.mode:
            calls = twin.rehearsal.record(args, kwargs)
            known: dict[object, PartGraph | None] = {}
            unplanned = {}
            for call in calls:
                if call.key not in known:
                    name = twin.names[call.unit]
                    try:
                        known[call.key] = traced_part(options, twin.whole.get_submodule(name), call)
                    except UnsupportedModelError as error:
                        known[call.key], unplanned[name] = None, str(error).splitlines()[0]
            parts = [each for each in known.values() if each is not None]
            workspaces: dict[object, int] = {}
            for each in parts:
                workspaces |= workspaces_of(each.graph, each.step.traced.nodes)
            pairs = ((n, known[call.key]) for n, call in enumerate(calls))
            graphs = {n: part for n, part in pairs if part is not None}
            return cls(
                twin=twin,
                arguments=(args, kwargs),
                options=options,
                calls=calls,
                graphs=graphs,
                unplanned=unplanned,
                workspaces=workspaces,
                plain=twin.rehearsal.peak(args, kwargs, workspaces=workspaces),
            )

    @cached_property
    def menus(self) -> dict[int, list[Item]]:
        """The schedules of each call that can be planned.

        Calls of one part with one graph have one schedule, so only the first of them is here.
        """
        by_digest = {part.graph.digest: part for part in self.graphs.values()}
        seconds = self.options.time_limit / max(1, len(by_digest))
        with self.twin.mode:
            found = {key: menu_of(part, self.options, seconds) for key, part in by_digest.items()}
        return {n: found[self.graphs[n].graph.digest] for n in self._alike}

    def peak(self, items: Mapping[int, Item]) -> ShardedPeak:
        """The peak of a choice of schedules."""
        played = {n: item.part for n, item in items.items()}
        with self.twin.mode:
            return self.twin.rehearsal.peak(*self.arguments, played, self.calls, self.workspaces)

    def planned(
        self,
        allocated: tuple[torch.device, int],
        followed: Mapping[str, Sequence[GivenSchedule]] | None = None,
        whole: Whole | None = None,
    ) -> ShardedPlan:
        """As :meth:`within`, for the budget of the options.

        Args:
            allocated: the device, and the bytes of the step that are allocated there already.
            followed: the schedules that parts follow, by name: they stay if they will do.
            whole: what the budget may be a share of; None = the plain peak of this step.
        """
        budget = budget_bytes(self.options, allocated, (whole or Whole()).grown(self.plain.peak))
        present = self._following(followed or {})
        if present is not None and not self._missing(max(0, present.needed.bound - budget)):
            return self._plan(present, budget)
        return self.within(budget)

    def _following(self, followed: Mapping[str, Sequence[GivenSchedule]]) -> _Choice | None:
        """The choice of the schedules that are followed; None if a call has none."""
        items: dict[int, Item] = {}
        for n, part in self.graphs.items():
            given = followed.get(self.twin.names[self.calls[n].unit], ())
            schedule = next((each.schedule for each in given if not each.differs(part.graph)), None)
            if schedule is None:
                return None
            items[n] = item_of(part, schedule)
        return _Choice(items, self.peak(items))

    def _missing(self, size: int) -> int:
        """The most bytes that a rank lacks, if this one lacks ``size``."""
        ranks = Ranks.of(self.options.process_group)
        return largest_of(ranks, f"a budget for {len(self.calls)} calls of parts", size)

    def within(self, budget: int) -> ShardedPlan:
        """The cheapest choice found within a budget in bytes.

        Ranks that plan together take the choice of the first one; it looks again, within less, if another
        rank lacks bytes.

        Raises:
            InfeasibleBudgetError: if none was found, on this rank or on another that plans with it.
        """
        ranks = Ranks.of(self.options.process_group)
        asks = f"a choice of schedules for {len(self.menus)} calls of parts"  # all ranks agree on menus first
        picks: tuple[int, ...] | None = None
        room = budget
        while True:
            before = picks
            picks = tuple(numbers_of_first(ranks, asks, partial(self._fitting, room)))
            choice = self._rehearsed(picks)
            excess = self._missing(max(0, choice.least_budget - budget))
            if not excess:
                return self._plan(choice, budget)
            if ranks is None or picks == before:
                break
            room -= excess
        raise InfeasibleBudgetError(
            budget=budget,
            minimum=budget + excess,
            floor=sum(self.twin.rehearsal.held(*self.arguments).values()),
            bottleneck=None,
            proved=False,
            whole=self.plain.peak,
        )

    def _fitting(self, budget: int) -> tuple[int, ...]:
        """Numbers of the schedules of the cheapest choice found in a budget; else of the least peak."""
        if self._rehearsed((0,) * len(self.menus)).least_budget > budget:
            self._look(lambda rest: chosen(*self._sizes, rest, budget))
        if fitting := [each for each in self._tried.values() if each.least_budget <= budget]:
            return min(fitting, key=lambda choice: choice.cost).picks
        return self.least().picks

    def least(self) -> _Choice:
        """The choice of the least peak that is found."""
        self._look(lambda rest: least(*self._sizes, rest))
        return min(self._tried.values(), key=lambda choice: choice.least_budget)

    def _look(self, choose: Callable[[Moments], Sequence[int]]) -> None:
        """Rehearse choices; each is made with what the last rehearsal said of the rest of the step."""
        choice, seen = self._rehearsed((0,) * len(self.menus)), set[tuple[int, ...]]()
        while choice.picks not in seen and len(seen) < _REHEARSALS:
            seen.add(choice.picks)
            held = zip(self._sizes[1], choice.picks, strict=True)
            memory = np.array([size for _, size in choice.needed.moments], dtype=float)
            choice = self._rehearsed(tuple(choose(memory - sum(rows[j] for rows, j in held))))

    @cached_property
    def _sizes(self) -> tuple[list[list[float]], list[Moments]]:
        """For each menu the costs of its schedules, and the bytes that each holds at each moment."""
        moments = self._rehearsed((0,) * len(self.menus)).needed.moments
        held = [np.zeros((len(items), len(moments))) for items in self.menus.values()]
        for rows, (first, items) in zip(held, self.menus.items(), strict=True):
            for n in self._alike[first]:
                passes = [k for k, (call, _) in enumerate(moments) if call == n]
                forward, backward, *_ = *passes, len(moments)
                for row, item in zip(rows, items, strict=True):
                    row[forward] += item.part.forward
                    row[forward + 1 : backward] += item.weight
                    row[backward : backward + 1] += item.weight + item.part.backward
        costs = [[item.cost * len(self._alike[n]) for item in items] for n, items in self.menus.items()]
        return costs, held

    def _rehearsed(self, picks: tuple[int, ...]) -> _Choice:
        """The choice of schedules by their numbers in the menus; rehearsed once."""
        if picks not in self._tried:
            pairs = zip(self.menus.items(), picks, strict=True)
            items = {k: items[j] for (n, items), j in pairs for k in self._alike[n]}
            self._tried[picks] = _Choice(items, self.peak(items), picks)
        return self._tried[picks]

    @cached_property
    def _alike(self) -> dict[int, list[int]]:
        """The calls of one part with one graph, which have one schedule, by the first of them."""
        groups: dict[object, list[int]] = {}
        for n, part in self.graphs.items():
            groups.setdefault((self.calls[n].unit, part.graph.digest), []).append(n)
        return {numbers[0]: numbers for numbers in groups.values()}

    def _plan(self, choice: _Choice, budget: int) -> ShardedPlan:
        parts = []
        cost = ideal = 0.0
        for n, item in choice.items.items():
            graph = self.graphs[n].graph
            cost, ideal = cost + item.cost, ideal + graph.ideal_cost
            parts.append(
                PartSchedule(
                    name=self.twin.names[self.calls[n].unit],
                    graph=graph,
                    schedule=item.schedule,
                    overhead=item.cost / graph.ideal_cost - 1 if graph.ideal_cost else 0.0,
                )
            )
        return ShardedPlan(
            budget=budget,
            peak=choice.needed.peak,
            by_kind=choice.needed.by_kind,
            plain_peak=self.plain.peak,
            parts=tuple(parts),
            overhead=cost / ideal - 1 if ideal else 0.0,
            unplanned=self.unplanned,
        )


class _Choice(NamedTuple):
    """A schedule for each call that is planned, and the memory of the step.

    ``picks`` are the numbers of the schedules in the menus; none if they are from elsewhere.
    """

    items: Mapping[int, Item]
    needed: ShardedPeak
    picks: tuple[int, ...] = ()

    @property
    def cost(self) -> float:
        """Of all calls that are planned."""
        return sum(item.cost for item in self.items.values())

    @property
    def least_budget(self) -> int:
        """Bytes: what is live at most; without recomputation the peak, as the plain step has it."""
        return self.needed.bound if any(self.picks) else self.needed.peak

"""Decide what each part of a sharded model keeps, so that a rank's whole step stays within the budget.

    step on fake tensors ↦ calls of parts ↦ a menu for each ↦ the fewest steps down the menus that fit

The steps down all menus are sorted by their cost for each byte less. How many are taken is found by
bisection: a rehearsal, in which FSDP's own code runs, tells the peak. Then single steps that were not needed
are undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from checkmate import DFGraph, InfeasibleBudgetError, Schedule, UnsupportedModelError
from checkmate.report import Kind, PeakReport
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.costs.price import workspaces_of
from checkmate_torch.costs.workspaces import library_bytes
from checkmate_torch.distributed.ranks import Ranks, largest_of
from checkmate_torch.memory.sharded_step import RecordedCall, Rehearsal, ShardedPeak
from checkmate_torch.planning.decide import Whole, budget_bytes
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.sharded.parts import (
    Item,
    Menu,
    PartGraph,
    item_of,
    menu_of,
    moves,
    parts_of,
    refuse_sharding,
    traced_part,
)
from checkmate_torch.planning.step_plan import GivenSchedule
from checkmate_torch.private import FakeTensorMode, shard_alike, unsharded_twin

__all__ = ["PartSchedule", "ShardedPlan", "ShardedSearch", "ShardedTwin"]

_MOST_UNDONE = 8
"""Rehearsals that look for steps down the menus that were not needed."""
_MOST_RUNGS = 12
"""Rehearsals that look for the least peak where the lightest schedules don't fit."""
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


@dataclass(slots=True, kw_only=True, eq=False)
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
    _menus: dict[int, Menu] = field(default_factory=dict)
    _tried: dict[int, _Choice] = field(default_factory=dict)

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

    @property
    def menus(self) -> dict[int, Menu]:
        """The schedules of each call that can be planned; found when they are first asked for."""
        if not self._menus:
            by_digest = {part.graph.digest: part for part in self.graphs.values()}
            seconds = self.options.time_limit / max(1, len(by_digest))
            with self.twin.mode:
                found = {key: menu_of(part, self.options, seconds) for key, part in by_digest.items()}
            self._menus = {n: found[part.graph.digest] for n, part in self.graphs.items()}
        return self._menus

    def peak(self, chosen: Mapping[int, Item]) -> ShardedPeak:
        """The peak of a choice of schedules."""
        played = {n: item.part for n, item in chosen.items()}
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

        Raises:
            InfeasibleBudgetError: if none was found, on this rank or on another that plans with it.
        """
        fitting = self._fitting(budget)
        choice = fitting or self.least(budget)
        excess = self._missing(0 if fitting is not None else max(0, choice.needed.bound - budget))
        if excess:
            raise InfeasibleBudgetError(
                budget=budget,
                minimum=budget + excess,
                floor=sum(self.twin.rehearsal.held(*self.arguments).values()),
                bottleneck=None,
                proved=False,
                whole=self.plain.peak,
            )
        return self._plan(choice, budget)

    def _fitting(self, budget: int) -> _Choice | None:
        """The fewest steps down the menus that fit, of which those are undone that were not needed."""
        steps = self._steps()
        low, high = 0, len(steps)
        if self._after(0).needed.peak <= budget:
            high = 0
        while high - low > 1:  # high is taken to fit, low does not
            middle = (low + high) // 2
            low, high = (low, middle) if self._after(middle).needed.bound <= budget else (middle, high)
        ranks = Ranks.of(self.options.process_group)
        high = largest_of(ranks, f"a plan for {len(self.calls)} calls of parts", high)
        choice = self._after(high)
        if (choice.needed.bound if high else choice.needed.peak) > budget:
            return None
        return choice if ranks is not None else self._undone(choice, steps[:high], budget)

    def least(self, budget: int = 0) -> _Choice:
        """The choice of the least peak that is found; the search ends early within a budget in bytes."""
        steps = self._steps()
        ends = [n for n in range(len(steps) + 1) if n in (0, len(steps)) or steps[n][0] != steps[n - 1][0]]
        tried = (self._after(n) for n in (*ends[:: 1 + len(ends) // _MOST_RUNGS], len(steps)))
        best = min(tried, key=lambda choice: choice.needed.bound)
        while best.needed.bound > budget and (lower := self._lower(best)) is not None:
            best = lower
        return best

    def _steps(self) -> list[tuple[float, int, int]]:
        """All steps down the menus, the cheapest for each byte first: ratio, call, item that is reached."""
        numbers = list(dict.fromkeys(self._alike(n)[0] for n in self.menus))
        found = moves([self.menus[n].items for n in numbers])
        return sorted((ratio, numbers[k], place) for ratio, k, place in found)

    def _after(self, count: int) -> _Choice:
        """The choice after some steps; rehearsed once."""
        if count not in self._tried:
            items = {n: menu.items[0] for n, menu in self.menus.items()}
            for _, n, place in self._steps()[:count]:
                items = self._replaced(items, n, self.menus[n].items[place])
            self._tried[count] = _Choice(items, self.peak(items))
        return self._tried[count]

    def _alike(self, n: int) -> list[int]:
        """The calls of the same part with the same graph, which has one schedule."""
        call, digest = self.calls[n], self.graphs[n].graph.digest
        pairs = self.graphs.items()
        return [k for k, part in pairs if self.calls[k].unit == call.unit and part.graph.digest == digest]

    def _replaced(self, items: Mapping[int, Item], n: int, item: Item) -> dict[int, Item]:
        return {**items, **dict.fromkeys(self._alike(n), item)}

    def _lower(self, choice: _Choice) -> _Choice | None:
        """Another item for the call at the peak, so that it needs less for itself; None if none helps."""
        n = choice.needed.call
        if n is None:
            return None
        for item in (*reversed(self.menus[n].items), self.menus[n].low):  # from the lightest
            if item.own < choice.items[n].own:
                items = self._replaced(choice.items, n, item)
                lower = _Choice(items, self.peak(items))
                if lower.needed.bound < choice.needed.bound:
                    return lower
        return None

    def _undone(self, choice: _Choice, taken: Sequence[tuple[float, int, int]], budget: int) -> _Choice:
        """Undo single steps that are not needed, the most expensive first."""
        tried = 0
        for _, n, place in sorted(taken, reverse=True):
            items = self.menus[n].items
            if choice.items[n] is not items[place] or tried == _MOST_UNDONE:
                continue
            tried += 1
            other = self._replaced(choice.items, n, items[place - 1])
            needed = self.peak(other)
            if needed.bound <= budget:
                choice = _Choice(other, needed)
        return choice

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
    """An item for each call that is planned, and the peak of the step."""

    items: Mapping[int, Item]
    needed: ShardedPeak

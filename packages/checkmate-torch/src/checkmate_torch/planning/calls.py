"""The planned calls of one training step: the bytes that they keep for backward, and one budget for all.

    call 1 ↦ call 2 ↦ … ↦ call k ↦ loss ↦ backward of k ↦ … ↦ backward of 2 ↦ backward of 1

A step has several calls if it calls models several times, or if Dynamo captures a model in pieces. Between
forward and backward pass of call i run the calls i + 1 … k, which take Wᵢ bytes, and leave Gᵢ bytes of
gradients. So call i is planned with Wᵢ as the workspace of its boundary and Gᵢ kept from there on:

    W_k, G_k = the loss      Wᵢ₋₁ = peakᵢ − baseᵢ      Gᵢ₋₁ = gradients of the parameters of calls i … k
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch

from checkmate import DFGraph, Schedule, Solution, Timeline, keep_all_peak, minimum_budget, simulate
from checkmate.framework import differences, schedule_of
from checkmate_torch.private import Boxed, WeakStorage, mark_boxed, storage_id
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = [
    "Call",
    "Calls",
    "Decision",
    "decided_as_one",
    "earlier_bytes",
    "least_as_one",
    "n_outstanding",
    "plain_peak_as_one",
]

_LEAST_S = 0.5
"""Seconds to look for the least peak of a call."""
_LEVELS = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Room of later calls that is tried, from the least that they need (0) to that without recomputation (1)."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Call:
    """A planned forward pass and its backward pass, as one of the calls of a step.

    Attributes:
        traced: its graph; priced.
        schedule: of its graph.
        depth: the number of calls whose backward passes were due when it was planned.
        earlier: bytes of those calls, with which its graph is charged.
        batch: bytes of its inputs that no other call makes.
        trained: storage → bytes of the trained parameters in its graph.
        owned: bytes of the model's parameters and other tensors, with all of which its graph is charged; None
            = the model is unknown.
        budget: of the whole step, in bytes.
        provisional: whether it was planned for the least peak, because later calls were to come.
        home: the calls of its planner.
        number: its own.
    """

    traced: TracedGraph
    schedule: Schedule
    depth: int
    earlier: int
    batch: int
    trained: Mapping[int, int]
    owned: int | None
    budget: int
    provisional: bool
    home: weakref.ref[Calls]
    number: int = field(default_factory=itertools.count().__next__)

    @property
    def graph(self) -> DFGraph:
        """Its graph without the bytes of other calls."""
        graph = self.traced.graph
        return replace(graph, fixed_size=graph.fixed_size - self.earlier)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """A schedule for one call of a step, decided together with the others.

    Attributes:
        call: the call.
        schedule: of its graph.
        besides: bytes that the other calls hold throughout.
        workspace: bytes that the calls between its two passes need.
        gradients: bytes that they leave.
        is_inner: whether they take its outputs, so that no loss does.
        budget: of the step, in bytes.
    """

    call: Call
    schedule: Schedule
    besides: int
    workspace: int
    gradients: int
    is_inner: bool
    budget: int = 0

    def charged(self, graph: DFGraph) -> DFGraph:
        """The graph of the call with the others between its passes; without a loss if it is inner."""
        ops, tensors = list(graph.ops), list(graph.tensors)
        boundary = self.call.traced.boundary
        if boundary is not None:
            op = ops[boundary]
            state = op.outputs[-1]
            of_loss = (0, 0) if self.is_inner else (op.workspace, tensors[state].size)
            ops[boundary] = replace(op, workspace=max(of_loss[0], self.workspace - self.gradients))
            tensors[state] = replace(tensors[state], size=of_loss[1] + self.gradients)
        fixed = graph.fixed_size + self.besides
        return replace(graph, ops=tuple(ops), tensors=tuple(tensors), fixed_size=fixed)


OnExcess = Callable[[Call, int], None]
"""Called with a call and the bytes that earlier calls keep while it runs, if its plan counts fewer."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Calls:
    """The calls of a planner, and what was decided for the steps that they are part of.

    Attributes:
        decided: the decisions for calls that were planned together with others, also those of other planners.
        renewed: whether there are decisions that no plan follows yet.
        settled: the steps, as the numbers of their calls, that were looked at.
        pending: the number of forward passes of each call whose backward passes have not run.
    """

    decided: list[Decision] = field(default_factory=list)
    renewed: bool = False
    settled: set[tuple[int, ...]] = field(default_factory=set)
    pending: dict[int, int] = field(default_factory=dict)

    def noting(self, call: Call, run: Boxed, n_outputs: int, on_excess: OnExcess) -> Boxed:
        """The forward pass of a call, which remembers the tensors that it keeps for backward.

        Args:
            call: the call.
            run: its forward pass.
            n_outputs: number of its results that the caller gets; the others are kept.
            on_excess: told if the call runs while earlier calls keep more than it is charged with.
        """
        kept: list[int] | None = None
        pending = self.pending

        def noted(args: list[object]) -> object:
            nonlocal kept
            if n_outstanding() and (earlier := earlier_bytes(args)) > call.earlier:
                on_excess(call, earlier)
            _note_nest(call, args)
            pending[call.number] = pending.get(call.number, 0) + 1
            held = _storages(args) if kept is None else {}
            results = cast("Sequence[object]", run(args))
            if kept is None:
                held |= _storages(results[:n_outputs])
                kept = [
                    k for k in range(n_outputs, len(results)) if _storages([results[k]]).keys() - held.keys()
                ]
            if kept:
                _outstanding.append(_Tensors(call, [results[k] for k in kept]))
            _made.append(_Tensors(call, results[:n_outputs]))
            return results

        return mark_boxed(noted)

    def noting_backward(self, call: Call, run: Boxed, on_repeat: Callable[[Call], None]) -> Boxed:
        """The backward pass of a call.

        Args:
            call: the call.
            run: its backward pass.
            on_repeat: told if it runs once more after one forward pass, for which autograd keeps its inputs.
        """

        def noted(args: list[object]) -> object:
            if not self.pending.get(call.number):
                on_repeat(call)
            self.pending[call.number] = max(0, self.pending.get(call.number, 0) - 1)
            return run(args)

        return mark_boxed(noted)

    def unsettled(self) -> list[Call] | None:
        """Calls of the last step that ran one inside of the other, if they were not decided together."""
        for nest in _nests if not n_outstanding() else ():
            calls = [call for reference in nest if (call := reference()) is not None]
            numbers = tuple(call.number for call in calls)
            if len(calls) == len(nest) > 1 and numbers not in self.settled:
                self.settled.add(numbers)
                return calls
        return None

    def known(self, graph: DFGraph, depth: int) -> Decision | None:
        """The decision for a graph at a depth, if its step was decided as one.

        A call may be part of several steps, as before a random branch: the one that needs most decides.
        """
        found = (d for d in self.decided if d.call.depth == depth and not differences(graph, d.call.graph))
        return max(found, key=lambda d: d.besides + d.workspace, default=None)


def _storages(values: Iterable[object]) -> dict[int, torch.UntypedStorage]:
    """The storages of the tensors among some values, by their numbers."""
    storages = (x.untyped_storage() for x in values if isinstance(x, torch.Tensor))
    return {storage_id(storage): storage for storage in storages}


class _Tensors:
    """Tensors that a forward pass has made, held weakly."""

    def __init__(self, call: Call, tensors: Iterable[object]) -> None:
        self.call = weakref.ref(call)
        self.storages = [WeakStorage(storage) for storage in _storages(tensors).values()]

    def live(self) -> dict[int, int]:
        """Storage → bytes, for those that still exist."""
        self.storages = [storage for storage in self.storages if not storage.is_gone()]
        return {storage.key: storage.size for storage in self.storages}


_outstanding: list[_Tensors] = []
"""What forward passes keep for backward passes that are due."""
_made: list[_Tensors] = []
"""The outputs of the calls of the present step so far, and likewise below."""
_inner: weakref.WeakSet[Call] = weakref.WeakSet()
"""Calls whose outputs are inputs of later ones: no loss reads them."""
_nests: list[list[weakref.ref[Call]]] = []
"""Calls that each ran between the passes of those before, in any model."""


def _note_nest(call: Call, inputs: Iterable[object]) -> None:
    """Note that a call starts while others wait for their backward passes."""
    outer = [kept.call for kept in _outstanding]
    if not outer:
        for noted in (_made, _inner, _nests):
            noted.clear()
    if _nests and _nests[-1] == outer:
        _nests.pop()
    keys = _storages(inputs).keys()
    read = [made.call for made in _made if made.live().keys() & keys]
    _inner.update(c for made in read if (c := made()) is not None)
    _nests[:] = [*(nest for nest in _nests if nest[-1] not in read), [*outer, weakref.ref(call)]]


def n_outstanding() -> int:
    """The number of planned calls in this process whose backward passes are still due."""
    _outstanding[:] = [kept for kept in _outstanding if kept.live()]
    return len(_outstanding)


def earlier_bytes(inputs: Iterable[object] = ()) -> int:
    """Bytes that planned calls keep for backward passes that are still due, those of ``inputs`` excepted."""
    live: dict[int, int] = {}
    for kept in _outstanding:
        live |= kept.live()
    for x in inputs:
        if live and isinstance(x, torch.Tensor):
            live.pop(storage_id(x.untyped_storage()), None)
    return sum(live.values())


Decide = Callable[[DFGraph, int], Solution]
"""Solves a graph within a budget; the solution may have no schedule."""


def decided_as_one(calls: Sequence[Call], budget: int, decide: Decide) -> list[Decision] | None:
    """Schedules for the calls of a step that together stay within its budget; None if none were found.

    Args:
        calls: in the order of their forward passes.
        budget: bytes of the whole step.
        decide: solves one call.
    """
    if not any(call.provisional for call in calls):
        present = _present(calls)
        if present.peak <= budget:
            return present.decisions
    best: _Decisions | None = None
    for level in _LEVELS:
        try:
            found = _Decisions(calls, partial(_solved, budget=budget, decide=decide, level=level))
        except _NoSchedule:
            if best is not None:
                break
            continue
        if best is not None and found.cost >= best.cost:
            break
        best = found
    return None if best is None else best.decisions


def plain_peak_as_one(calls: Sequence[Call]) -> int:
    """The peak of all calls of a step without recomputation, in bytes."""

    def everything(graph: DFGraph, _: int) -> tuple[Schedule, Timeline]:
        schedule = Schedule.from_sequence(graph, range(graph.n_ops))
        return schedule, simulate(graph, schedule)

    return _Decisions(calls, everything).peak


def least_as_one(calls: Sequence[Call]) -> tuple[list[Decision], int]:
    """Schedules of the least known peak for the calls of a step, and that peak, in bytes.

    There are none where the present schedules are as good.
    """

    def least(graph: DFGraph, _: int) -> tuple[Schedule, Timeline]:
        schedule = schedule_of(minimum_budget(graph, fixed_order=True, time_limit=_LEAST_S))
        return schedule, simulate(graph, schedule)

    found, present = _Decisions(calls, least), _present(calls)
    return found.decisions if found.peak < present.peak else [], min(found.peak, present.peak)


def _present(calls: Sequence[Call]) -> _Decisions:
    return _Decisions(calls, lambda graph, k: (calls[k].schedule, simulate(graph, calls[k].schedule)))


class _NoSchedule(Exception):  # noqa: N818 - caught right here
    """A call has no schedule in its room."""


def _solved(
    graph: DFGraph, k: int, *, budget: int, decide: Decide, level: float
) -> tuple[Schedule, Timeline]:
    """The schedule of call k; later calls get a share ``level`` of the room that they can use."""
    room = budget
    if k:
        least = minimum_budget(graph, fixed_order=True, time_limit=_LEAST_S).problem.budget
        room = min(budget, int(least + level * (keep_all_peak(graph) - least)))
    solution = decide(graph, room)
    if solution.timeline is None:
        raise _NoSchedule
    return solution.timeline.schedule, solution.timeline


class _Decisions:
    """Decisions for the calls of a step, made from the last call to the first.

    Args:
        calls: in the order of their forward passes.
        decide: makes the schedule of a call: of its graph, charged with the other calls, and its number.

    Attributes:
        decisions: for each call.
        peak: of the step, in bytes.
        cost: of all calls.
    """

    def __init__(
        self, calls: Sequence[Call], decide: Callable[[DFGraph, int], tuple[Schedule, Timeline]]
    ) -> None:
        resident = {key: size for call in calls if call.owned is None for key, size in call.trained.items()}
        owned = {call.home: call.owned or 0 for call in calls}
        later: dict[int, int] = {}
        self.decisions: list[Decision] = []
        self.peak, self.cost, workspace = 0, 0.0, 0
        for k, call in reversed(list(enumerate(calls))):
            others = sum(each.batch for each in calls if each is not call)
            others += sum(size for home, size in owned.items() if home != call.home)
            others += sum(size for key, size in resident.items() if key not in call.trained)
            present = Decision(
                call=call,
                schedule=call.schedule,
                besides=others,
                workspace=workspace,
                gradients=sum(later.values()),
                is_inner=call in _inner and k < len(calls) - 1,
            )
            graph = present.charged(call.graph)
            schedule, timeline = decide(graph, k)
            self.decisions.insert(0, replace(present, schedule=schedule))
            self.peak, self.cost = timeline.peak, self.cost + timeline.cost
            workspace = timeline.peak - graph.base_size
            later |= call.trained

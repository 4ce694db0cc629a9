"""The planned calls of a training step, as they run: the bytes that each keeps for its backward pass.

    call 1 ↦ call 2 ↦ … ↦ call k ↦ loss ↦ backward of k ↦ … ↦ backward of 2 ↦ backward of 1

A step has several calls if it calls models several times, or if Dynamo captures a model in pieces. Such a
*nest* of calls is noted while the first step runs; :mod:`~checkmate_torch.planning.nested_calls.joint_budget`
then decides the schedules of its calls together.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from checkmate import DFGraph, Problem, Schedule, Solution, simulate
from checkmate.framework import differences
from checkmate.units import format_bytes
from checkmate_torch.planning.options import Warnings
from checkmate_torch.private import Boxed, WeakStorage, mark_boxed, storage_id
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["Decision", "Earlier", "Nest", "NestedCalls", "PlannedCall", "n_outstanding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The planned calls whose backward passes are due when a graph is captured.

    Attributes:
        depth: their number.
        size: bytes that they keep, beside the inputs of the graph.
        inputs: bytes of these inputs that they keep.
    """

    depth: int = 0
    size: int = 0
    inputs: int = 0

    @classmethod
    def beside(cls, inputs: Iterable[object]) -> Earlier:
        """Those of now.

        Args:
            inputs: of the graph.
        """
        depth = n_outstanding()
        if not depth:
            return cls()
        besides = _process.kept_bytes(inputs)
        return cls(depth=depth, size=besides, inputs=_process.kept_bytes() - besides)


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class PlannedCall:
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
        home: the calls of its session.
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
    home: weakref.ref[NestedCalls]
    number: int = field(default_factory=itertools.count().__next__)

    @property
    def graph(self) -> DFGraph:
        """Its graph without the bytes of other calls."""
        graph = self.traced.graph
        return replace(graph, fixed_size=graph.fixed_size - self.earlier)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nest:
    """Calls of one step, of any models, each of which runs between the two passes of those before it.

    Attributes:
        calls: in the order of their forward passes.
        inner: those whose outputs are inputs of later calls, so that no loss reads them.
    """

    calls: tuple[PlannedCall, ...]
    inner: frozenset[PlannedCall]


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

    call: PlannedCall
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

    def solution(self, graph: DFGraph) -> Solution:
        """The schedule on a newly traced graph of the call."""
        charged = self.charged(graph)
        timeline = simulate(charged, self.schedule)
        problem = Problem(graph=charged, budget=max(self.budget, timeline.peak), fixed_order=True)
        return Solution.found(problem, timeline, solver="joint")


@dataclass(slots=True, weakref_slot=True, eq=False)
class NestedCalls:
    """The calls of a session, and what was decided for the steps that they are part of.

    Attributes:
        warnings: of the session.
        decided: the decisions for calls that were decided together with others, also of other sessions.
        renewed: whether plans are to be made again, because they follow no decision yet or too few bytes
            were counted.
        backward_repeats: whether backward passes run more than once after one forward pass.
        seen: the nests, as the numbers of their calls, that were decided together.
        pending: the number of forward passes of each call whose backward passes have not run.
    """

    warnings: Warnings = field(default_factory=Warnings)
    decided: list[Decision] = field(default_factory=list)
    renewed: bool = False
    backward_repeats: bool = False
    seen: set[tuple[int, ...]] = field(default_factory=set)
    pending: dict[int, int] = field(default_factory=dict)

    def noting(self, call: PlannedCall, run: Boxed, n_outputs: int) -> Boxed:
        """The forward pass of a call, which remembers the tensors that it keeps for backward.

        Args:
            call: the call.
            run: its forward pass.
            n_outputs: number of its results that the caller gets; the others are kept.
        """
        kept: list[int] | None = None
        pending = self.pending

        def noted(args: list[object]) -> object:
            nonlocal kept
            if _process.n_due() and (earlier := _process.kept_bytes(args)) > call.earlier:
                self._warn_of_excess(call, earlier)
            _process.note_start(call, args)
            pending[call.number] = pending.get(call.number, 0) + 1
            held = _storages(args) if kept is None else {}
            results = cast("Sequence[object]", run(args))
            if kept is None:
                held |= _storages(results[:n_outputs])
                kept = [
                    k for k in range(n_outputs, len(results)) if _storages([results[k]]).keys() - held.keys()
                ]
            _process.note_end(call, results[:n_outputs], [results[k] for k in kept])
            return results

        return mark_boxed(noted)

    def noting_backward(self, call: PlannedCall, run: Boxed) -> Boxed:
        """The backward pass of a call; a second one after one forward pass is warned about."""

        def noted(args: list[object]) -> object:
            if not self.pending.get(call.number):
                self._note_repeat(call)
            self.pending[call.number] = max(0, self.pending.get(call.number, 0) - 1)
            return run(args)

        return mark_boxed(noted)

    def undecided(self) -> Nest | None:
        """A nest of the last step whose calls were not decided together."""
        for nest in _process.nests() if not _process.n_due() else ():
            numbers = tuple(call.number for call in nest.calls)
            if numbers not in self.seen:
                self.seen.add(numbers)
                return nest
        return None

    def decision(self, graph: DFGraph, depth: int) -> Decision | None:
        """The decision for a graph at a depth, if its step was decided as one.

        A call may be part of several steps, as before a random branch: the one that needs most decides.
        """
        found = (d for d in self.decided if d.call.depth == depth and not differences(graph, d.call.graph))
        return max(found, key=lambda d: d.besides + d.workspace, default=None)

    def _warn_of_excess(self, call: PlannedCall, earlier: int) -> None:
        """Warn of a call that runs while earlier calls keep more bytes than its plan counts."""
        more = earlier - call.earlier
        peak = simulate(call.traced.graph, call.schedule).peak + more
        if peak > call.budget:
            self.warnings.once(
                "excess",
                f"earlier calls keep {format_bytes(earlier)} for their backward passes while this one runs, "
                f"and its plan counts {format_bytes(call.earlier)}: the step may exceed its budget of "
                f"{format_bytes(call.budget)} by {format_bytes(peak - call.budget)}. Compute all in one call "
                "of one model, which is planned as a whole",
            )

    def _note_repeat(self, call: PlannedCall) -> None:
        """Warn of a graph that is kept for another backward pass, and plan for that from the next step on."""
        if self.backward_repeats:
            return
        self.backward_repeats = self.renewed = True
        kept = simulate(call.traced.graph, call.schedule).peak - call.traced.graph.base_size
        self.warnings.once(
            "repeat",
            "a backward pass ran more than once after one forward pass: with retain_graph=True autograd "
            "keeps all saved tensors to the end, so that this step may exceed its budget by up to "
            f"{format_bytes(kept)}. Later steps are planned for that; one backward pass of the sum of the "
            "losses needs less",
        )


def n_outstanding() -> int:
    """The number of planned calls in this process whose backward passes are still due."""
    return _process.n_due()


class _Process:
    """The planned calls of this process, in any model: which wait for their backward passes, and which nest.

    Attributes:
        due: what forward passes keep for backward passes that are due.
        made: the outputs of the calls of the present step so far.
        inner: the calls of the present step whose outputs are inputs of later ones.
        chains: the calls of each nest of the present step, in order.
    """

    def __init__(self) -> None:
        self.due: list[_Tensors] = []
        self.made: list[_Tensors] = []
        self.inner: weakref.WeakSet[PlannedCall] = weakref.WeakSet()
        self.chains: list[list[weakref.ref[PlannedCall]]] = []

    def n_due(self) -> int:
        """The number of calls whose backward passes are due."""
        self.due[:] = [kept for kept in self.due if kept.live()]
        return len(self.due)

    def kept_bytes(self, inputs: Iterable[object] = ()) -> int:
        """Bytes that calls keep for backward passes that are due, those of ``inputs`` excepted."""
        live: dict[int, int] = {}
        for kept in self.due:
            live |= kept.live()
        for x in inputs:
            if live and isinstance(x, torch.Tensor):
                live.pop(storage_id(x.untyped_storage()), None)
        return sum(live.values())

    def note_start(self, call: PlannedCall, inputs: Iterable[object]) -> None:
        """Note that a call starts inside of those whose backward passes are due."""
        outer = [kept.call for kept in self.due]
        if not outer:  # a new step
            self.made.clear()
            self.inner.clear()
            self.chains.clear()
        keys = _storages(inputs).keys()
        read = [made.call for made in self.made if made.live().keys() & keys]
        self.inner.update(c for reference in read if (c := reference()) is not None)
        if self.chains and self.chains[-1] == outer:  # the present nest gets longer
            self.chains.pop()
        # A call whose outputs this one reads is inside of this one's nest, and ends none of its own.
        self.chains[:] = [chain for chain in self.chains if chain[-1] not in read]
        self.chains.append([*outer, weakref.ref(call)])

    def note_end(self, call: PlannedCall, outputs: Iterable[object], kept: Sequence[object]) -> None:
        """Note what the forward pass of a call returns, and what it keeps for its backward pass."""
        if kept:
            self.due.append(_Tensors(call, kept))
        self.made.append(_Tensors(call, outputs))

    def nests(self) -> list[Nest]:
        """The nests of the last step that have two calls or more, all of which still exist."""
        found = []
        for chain in self.chains:
            calls = tuple(call for reference in chain if (call := reference()) is not None)
            if len(calls) == len(chain) > 1:
                found.append(Nest(calls=calls, inner=frozenset(self.inner)))
        return found


_process = _Process()


class _Tensors:
    """Tensors that a forward pass has made, held weakly."""

    def __init__(self, call: PlannedCall, tensors: Iterable[object]) -> None:
        self.call = weakref.ref(call)
        self.storages = [WeakStorage(storage) for storage in _storages(tensors).values()]

    def live(self) -> dict[int, int]:
        """Storage → bytes, for those that still exist."""
        self.storages = [storage for storage in self.storages if not storage.is_gone()]
        return {storage.key: storage.size for storage in self.storages}


def _storages(values: Iterable[object]) -> dict[int, torch.UntypedStorage]:
    """The storages of the tensors among some values, by their numbers."""
    storages = (x.untyped_storage() for x in values if isinstance(x, torch.Tensor))
    return {storage_id(storage): storage for storage in storages}

"""The planned calls of training steps, as they run: which of them run between the two passes of others.

    call 1 ↦ call 2 ↦ … ↦ call k ↦ loss ↦ backward of k ↦ … ↦ backward of 2 ↦ backward of 1

A step has several calls if it calls models several times, or if Dynamo captures a model in pieces. Such a
*nest* of calls is noted while a step runs; :mod:`~checkmate_torch.planning.nested_calls.joint_budget` then
decides the schedules of its calls together. A call is one graph: it has one schedule wherever it runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from itertools import chain, count
from typing import Self, cast

import torch

from checkmate import DFGraph, Problem, Schedule, Solution, simulate
from checkmate.framework import differences
from checkmate.units import format_bytes
from checkmate_torch.planning.nested_calls.changing_sizes import ChangingSizes
from checkmate_torch.planning.options import Warnings
from checkmate_torch.private import Boxed, WeakStorage, mark_boxed, storage_id

__all__ = ["Decision", "Nest", "NestedCalls", "PlannedCall", "n_outstanding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A schedule for a call, decided together with the other calls of its steps.

    Attributes:
        schedule: of the call's graph.
        values: of the sizes that may change, where the call needs most.
        besides: bytes that the other calls hold throughout.
        workspace: bytes that the calls between its two passes need.
        gradients: bytes that they leave.
        is_inner: whether they take its outputs, so that no loss does.
        n_calls: the number of calls of the step.
        budget: of the step, in bytes.
        plain_peak: of the step without recomputation, in bytes.
    """

    schedule: Schedule
    values: tuple[int, ...]
    besides: int
    workspace: int
    gradients: int
    is_inner: bool
    n_calls: int
    budget: int = 0
    plain_peak: int = 0

    def __str__(self) -> str:
        """What the call shares with others."""
        return (
            f"this is one of {self.n_calls} calls of a step, which share the budget: the others hold "
            f"{format_bytes(self.besides)} throughout, and take {format_bytes(self.workspace)} between its "
            "two passes"
        )

    def charged(self, graph: DFGraph, boundary: int | None, sizes: ChangingSizes) -> DFGraph:
        """The graph of the call with the others between its passes; without a loss if it is inner."""
        graph = sizes.applied(graph, self.values)
        ops, tensors = list(graph.ops), list(graph.tensors)
        if boundary is not None:
            op = ops[boundary]
            state = op.outputs[-1]
            of_loss = (0, 0) if self.is_inner else (op.workspace, tensors[state].size)
            ops[boundary] = replace(op, workspace=max(of_loss[0], self.workspace - self.gradients))
            tensors[state] = replace(tensors[state], size=of_loss[1] + self.gradients)
        fixed = graph.fixed_size + self.besides
        return replace(graph, ops=tuple(ops), tensors=tuple(tensors), fixed_size=fixed)

    def solution(self, graph: DFGraph, boundary: int | None, sizes: ChangingSizes) -> Solution:
        """The schedule on a newly traced graph of the call."""
        charged = self.charged(graph, boundary, sizes)
        timeline = simulate(charged, self.schedule)
        problem = Problem(graph=charged, budget=max(self.budget, timeline.peak), fixed_order=True)
        return Solution.found(problem, timeline, solver="joint")


@dataclass(slots=True, weakref_slot=True, kw_only=True, eq=False)
class PlannedCall:
    """A planned graph: a forward pass and its backward pass. Captured again, it is the same call.

    Attributes:
        graph: priced.
        boundary: the op between the two passes.
        sizes: those that may change from run to run.
        schedule: of its graph.
        batch: positions of the batch among the arguments of its forward pass.
        trained: storage → bytes of the trained parameters in its graph.
        owned: bytes of the model's parameters and other tensors, with all of which its graph is charged; None
            = the model is unknown.
        optimizer_bytes: bytes of an optimizer's state with which its graph is charged.
        budget: of the whole step, in bytes.
        loss_guess: bytes that a rule of thumb charges for a loss outside of the model.
        provisional: whether it was planned for the least peak, because the other calls were not known.
        home: the calls of its session.
        generation: the last of its session in which it was captured.
        decision: made for it and other calls together, if there is one.
        number: its own.
    """

    graph: DFGraph
    boundary: int | None
    sizes: ChangingSizes
    schedule: Schedule
    batch: Sequence[int]
    trained: Mapping[int, int]
    owned: int | None
    optimizer_bytes: int
    budget: int
    loss_guess: int
    provisional: bool
    home: weakref.ref[NestedCalls]
    generation: int = 0
    decision: Decision | None = None
    number: int = field(default_factory=count().__next__)

    @property
    def is_dropped(self) -> bool:
        """Whether the model was captured again since, and not this call."""
        home = self.home()
        return home is not None and self.generation < home.generation

    @property
    def later_state(self) -> int:
        """Bytes of an optimizer's state that its graph does not count yet."""
        home = self.home()
        return max(0, home.optimizer_bytes - self.optimizer_bytes) if home is not None else 0

    def charged(self, decision: Decision) -> DFGraph:
        """Its graph with the other calls of a decision."""
        return decision.charged(self.graph, self.boundary, self.sizes)

    def decision_for(self, graph: DFGraph, boundary: int | None, sizes: ChangingSizes) -> Decision | None:
        """The decision, if the peak of its graph, captured again, is what was decided on."""
        if self.decision is None:
            return None
        decided = self.decision.solution(self.graph, self.boundary, self.sizes)
        present = self.decision.solution(graph, boundary, sizes)
        return self.decision if (present.peak or 0) <= decided.problem.budget else None


_OF_CAPTURE = {f.name for f in fields(PlannedCall)} - {"boundary", "home", "decision", "number"}
"""What changes if a call is captured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """Calls of one step, of any models, each of which runs between the two passes of those before it.

    Attributes:
        calls: in the order of their forward passes.
        values: for each, the values of its sizes that may change.
        batches: for each, bytes of the inputs of the others that are not its own, and that no call has made.
        inner: for each, whether its outputs are inputs of a later one, so that no loss reads them.
    """

    calls: tuple[PlannedCall, ...]
    values: tuple[tuple[int, ...], ...]
    batches: tuple[int, ...]
    inner: tuple[bool, ...]

    @classmethod
    def of(cls, runs: Sequence[_Run]) -> Self:
        """The nest that some runs are."""
        made = set().union(*(run.made for run in runs))
        batches = [{key: size for key, size in run.batch.items() if key not in made} for run in runs]
        together = {key: size for batch in batches for key, size in batch.items()}
        return cls(
            calls=tuple(run.call for run in runs),
            values=tuple(run.values for run in runs),
            batches=tuple(sum(together.values()) - sum(batch.values()) for batch in batches),
            inner=(*(run.is_inner for run in runs[:-1]), False),
        )

    def is_alive(self) -> bool:
        """Whether the sessions of all its calls exist."""
        return all(call.home() is not None for call in self.calls)

    def covers(self, other: Nest) -> bool:
        """Whether another nest has the same calls, no larger sizes, and no larger batches."""
        kinds = [(nest.calls, nest.inner, [*map(len, nest.values)]) for nest in (self, other)]
        pairs = zip(chain(self.batches, *self.values), chain(other.batches, *other.values), strict=False)
        return kinds[0] == kinds[1] and all(n <= most for most, n in pairs)

    def replaces(self, other: Nest) -> bool:
        """Whether another nest is this one before a model was captured again, as far as can be seen."""
        homes = [[call.home() for call in nest.calls] for nest in (self, other)]
        return homes[0] == homes[1] and self.inner == other.inner and any(c.is_dropped for c in other.calls)


@dataclass(slots=True, weakref_slot=True, eq=False)
class NestedCalls:
    """The calls of a session.

    Attributes:
        warnings: of the session.
        known: the calls so far.
        optimizer_bytes: bytes of optimizers' states, as far as the session knows.
        generation: how often all captured graphs were dropped.
        renewed: whether plans are to be made again, because schedules were decided again.
        backward_repeats: whether backward passes run more than once after one forward pass.
        n_decided: how often its calls were decided together with others.
        pending: the number of forward passes of each call whose backward passes have not run.
    """

    warnings: Warnings = field(default_factory=Warnings)
    known: list[PlannedCall] = field(default_factory=list)
    optimizer_bytes: int = 0
    generation: int = 0
    renewed: bool = False
    backward_repeats: bool = False
    n_decided: int = 0
    pending: dict[int, int] = field(default_factory=dict)

    def find(self, graph: DFGraph) -> PlannedCall | None:
        """The call of a traced graph, if it was planned before."""
        return next((call for call in self.known if not differences(graph, call.graph)), None)

    def noted(self, call: PlannedCall, known: PlannedCall | None) -> PlannedCall:
        """The call to run: a newly planned one, or the known one of the same graph, brought up to date."""
        call.generation = self.generation
        if known is None:
            self.known.append(call)
            return call
        if call.provisional:
            self.reopen(known)
        for name in _OF_CAPTURE:
            setattr(known, name, getattr(call, name))
        return known

    def noting(self, call: PlannedCall, run: Boxed, outputs: Sequence[int], first_kept: int) -> Boxed:
        """The forward pass of a call, which remembers its outputs, and whether its backward pass is due.

        Args:
            call: the call.
            run: its forward pass.
            outputs: the numbers of the results that the caller may give to another call.
            first_kept: the number of the first result that is kept for backward.
        """
        last_kept: Sequence[int] | None = None
        pending = self.pending

        def noted(args: list[object]) -> object:
            nonlocal last_kept
            started = _process.start(call, args)
            pending[call.number] = pending.get(call.number, 0) + 1
            held = _storages(args) if last_kept is None else {}
            results = cast("Sequence[object]", run(args))
            if last_kept is None:
                last_kept = _last_apart(results, first_kept, held)
            _process.end(started, [results[k] for k in outputs], [results[k] for k in last_kept])
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

    def undecided(self) -> Sequence[Nest]:
        """The nests to decide now, with all that share calls with them; none if nothing is due.

        It is due when the calls begin again with one of this session, so that all of a step are known.
        """
        return _process.undecided_from(self)

    def reopen(self, *calls: PlannedCall) -> None:
        """Let all nests of some calls be decided again, as more bytes are held than were counted."""
        _process.reopen(set(calls))

    def _note_repeat(self, call: PlannedCall) -> None:
        """Warn of a graph that is kept for another backward pass, and plan for that from the next step on."""
        if self.backward_repeats:
            return
        self.backward_repeats = self.renewed = True
        kept = simulate(call.graph, call.schedule).peak - call.graph.base_size
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


class _Run:
    """One run of a call: the tensors that its forward pass returns, and the last it keeps, held weakly."""

    def __init__(self, call: PlannedCall, inputs: Sequence[object]) -> None:
        self.call = call
        self.values = call.sizes.values(inputs)
        self.batch = {key: s.nbytes() for key, s in _storages(inputs[k] for k in call.batch).items()}
        self.made: Set[int] = frozenset()
        self.outputs: list[WeakStorage] = []
        self.last_kept: list[WeakStorage] = []  # at most one
        self.is_inner = False

    def is_due(self) -> bool:
        """Whether it still keeps tensors for its backward pass."""
        return any(not storage.is_gone() for storage in self.last_kept)

    def live_outputs(self) -> set[int]:
        """The storages of its outputs that still exist."""
        return {storage.key for storage in self.outputs if not storage.is_gone()}


class _Process:
    """The planned calls of this process, in any model: which wait for their backward passes, and which nest.

    Attributes:
        due: the runs whose backward passes are due.
        runs: the runs of the present step so far.
        chains: the runs of each nest of the present step, in order.
        nests: the nests so far.
        waiting: those that were not decided.
    """

    def __init__(self) -> None:
        self.due: list[_Run] = []
        self.runs: list[_Run] = []
        self.chains: list[list[_Run]] = []
        self.nests: list[Nest] = []
        self.waiting: list[Nest] = []

    def n_due(self) -> int:
        """The number of runs whose backward passes are due."""
        self.due[:] = [run for run in self.due if run.is_due()]
        return len(self.due)

    def start(self, call: PlannedCall, inputs: Sequence[object]) -> _Run:
        """Note that a call starts inside of those whose backward passes are due."""
        run, outer = _Run(call, inputs), list(self.due) if self.n_due() else []
        if not outer:
            self.finish_step()
            self.chains.append([run])
            return run
        keys = _storages(inputs).keys()
        read = [each for each in self.runs if not keys.isdisjoint(each.live_outputs())]
        for each in read:
            each.is_inner = True
        if self.chains and self.chains[-1] == outer:  # the present nest gets longer
            self.chains.pop()
        # A call whose outputs this one reads is inside of this one's nest, and ends none of its own.
        self.chains[:] = [chain for chain in self.chains if chain[-1] not in read]
        self.chains.append([*outer, run])
        return run

    def end(self, run: _Run, outputs: Iterable[object], last_kept: Sequence[object]) -> None:
        """Note what the forward pass of a call returns, and the last that it keeps for its backward pass."""
        run.outputs, run.last_kept = _weakly(outputs), _weakly(last_kept)
        run.made = {storage.key for storage in run.outputs}
        self.runs.append(run)
        if last_kept:
            self.due.append(run)

    def finish_step(self) -> None:
        """Note the nests of the step that has ended."""
        for runs in self.chains:
            if len(runs) == 1 and not runs[0].call.provisional:
                continue
            nest = Nest.of(runs)
            if not any(n.covers(nest) for n in self.nests):
                for nests in (self.nests, self.waiting):
                    nests[:] = [n for n in nests if not nest.covers(n) and not nest.replaces(n)] + [nest]
        self.runs.clear()
        self.chains.clear()

    def undecided_from(self, home: NestedCalls) -> Sequence[Nest]:
        """As :meth:`NestedCalls.undecided`."""
        if self.n_due():
            return ()
        self.finish_step()
        if not any(nest.calls[0].home() is home for nest in self.waiting):
            return ()
        self.nests = [nest for nest in self.nests if nest.is_alive()]
        waiting, self.waiting = self.waiting, []
        return self._related([nest for nest in waiting if nest.is_alive()])

    def _related(self, found: Sequence[Nest]) -> Sequence[Nest]:
        """Some nests and all that share calls with them, directly or through others."""
        calls = set(chain(*(nest.calls for nest in found)))
        further = [nest for nest in self.nests if nest not in found and not calls.isdisjoint(nest.calls)]
        return self._related([*found, *further]) if further else found

    def reopen(self, calls: Set[PlannedCall]) -> None:
        """As :meth:`NestedCalls.reopen`."""
        nests = (nest for nest in self.nests if not calls.isdisjoint(nest.calls))
        self.waiting += [nest for nest in nests if nest not in self.waiting]


_process = _Process()


def _last_apart(results: Sequence[object], first_kept: int, held: Mapping[int, object]) -> list[int]:
    """The number of the last result that only the backward pass keeps, which it reads last; none if none is.

    ``held``: the storages of the inputs.
    """
    others = held.keys() | _storages(results[:first_kept]).keys()
    kept = [k for k in range(first_kept, len(results)) if _storages([results[k]]).keys() - others]
    return kept[-1:]


def _weakly(values: Iterable[object]) -> list[WeakStorage]:
    return [WeakStorage(storage) for storage in _storages(values).values()]


def _storages(values: Iterable[object]) -> dict[int, torch.UntypedStorage]:
    """The storages of the tensors among some values, by their numbers."""
    storages = (x.untyped_storage() for x in values if isinstance(x, torch.Tensor))
    return {storage_id(storage): storage for storage in storages}

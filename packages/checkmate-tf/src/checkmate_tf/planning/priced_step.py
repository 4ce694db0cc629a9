"""Price a traced step: the cost of each op, the bytes that it holds, and what each byte is for.

traced ↦ profiles of its ops ↦ workspaces ↦ priced graph ↦ updates moved, inputs reused
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import tensorflow as tf

from checkmate import DFGraph, Schedule
from checkmate.cost import OpProfile
from checkmate.report import Account, Kind
from checkmate_tf.costs.price import price, profile_ops
from checkmate_tf.memory.account import kinds_of
from checkmate_tf.memory.allocator import Counts, expected_bytes
from checkmate_tf.memory.plain_executor import plain_program, threads_of
from checkmate_tf.memory.residency import held_by_group, with_lent, with_reuses, workspaces_of
from checkmate_tf.ops.device import device_of_this_machine, is_limited
from checkmate_tf.planning.options import Options
from checkmate_tf.running.ordered_step import OrderedStep
from checkmate_tf.running.program import Program
from checkmate_tf.tracing.step_graph import TracedGraph

__all__ = ["UNCOUNTED", "PricedStep", "price_step"]

UNCOUNTED: Mapping[Counts, Kind] = {"live": Kind.SMALL, "allocator": Kind.CHUNKS}
"""The kind of the bytes that the budget includes but the simulator does not count."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedStep:
    """A step with the cost and the bytes of each op; made by :func:`price_step`.

    Attributes:
        ordered: the priced graph, its updates as early as is safe, and how it corresponds to the traced one.
        workspaces: bytes that each op needs only while it runs.
        profiles: measured seconds and workspaces of the ops; empty if nothing was measured.
        counts: the bytes that the budget bounds, as in :class:`~checkmate_tf.planning.options.Settings`.
        reserve: bytes that the user reserves beside the step.
        optimizer: ids of the handles of an optimizer's variables.
    """

    ordered: OrderedStep
    workspaces: Mapping[tf.Operation, int]
    profiles: Mapping[tf.Operation, OpProfile]
    counts: Counts
    reserve: int
    optimizer: Collection[int]

    @property
    def traced(self) -> TracedGraph:
        """The step in the order in which it was traced."""
        return self.ordered.traced

    @property
    def graph(self) -> DFGraph:
        """The graph to solve."""
        return self.ordered.graph

    @property
    def plain_peak(self) -> int:
        """Predicted bytes of the step at its peak as TensorFlow runs it without a plan."""
        return self._plain_peak()

    @property
    def highest_plain_peak(self) -> int:
        """The ``plain_peak`` where one more op runs at once than there are threads.

        A thread frees what an op has read only after it has made the next ops ready, and threads that are
        interrupted finish later. So most runs are at one of these two peaks, which are up to 8 % apart in
        steps whose layers run again (docs/results/keras-remat.md).
        """
        threads = threads_of(device_of_this_machine())
        return self.plain_peak if threads == 1 else max(self.plain_peak, self._plain_peak(threads + 1))

    def _plain_peak(self, threads: int | None = None) -> int:
        device = device_of_this_machine()
        program, needs = plain_program(self.traced, self.workspaces, self.profiles, device, threads)
        return expected_bytes(program, needs, self.graph, self.counts)

    def emit(self, schedule: Schedule) -> tuple[Program, int]:
        """The program of a schedule, and the bytes that it is expected to need at its peak."""
        program = self.ordered.program(schedule)
        return program, expected_bytes(program, self.workspaces, self.graph, self.counts)

    def account(self, uncounted: int = 0) -> Account:
        """What each byte is held for; ``uncounted`` bytes are reserved for what the simulator omits."""
        constants = self.graph.fixed_size - self.reserve
        fixed = {Kind.CONSTANTS: constants, Kind.RESERVE: self.reserve, UNCOUNTED[self.counts]: uncounted}
        kinds = kinds_of(self.traced, self.graph, self.optimizer)
        return Account(kinds=kinds, fixed={kind: size for kind, size in fixed.items() if size})

    def on_smaller(self, traced: TracedGraph) -> PricedStep:
        """The same step on smaller tensors; costs and workspaces are kept, as upper bounds."""
        ops = zip(self.traced.heavy, traced.heavy, strict=True)
        workspaces = {op: self.workspaces.get(before, 0) for before, op in ops}
        tensors = (*with_lent(traced, workspaces), *self.graph.tensors[traced.graph.n_tensors :])
        ordered = self.ordered.on(traced, replace(self.graph, tensors=tensors))
        return replace(self, ordered=ordered, workspaces=workspaces, profiles={})


def price_step(traced: TracedGraph, options: Options, optimizer: Collection[int] = ()) -> PricedStep:
    """Price a traced step; ``optimizer`` has the ids of the handles of an optimizer's variables."""
    profiles = _profiles(traced, options)
    options.report("counting bytes")
    workspaces = workspaces_of(traced, profiles)
    graph = price(
        _with_bytes(traced, workspaces, options.reserve),
        traced.groups,
        options.cost_model,
        loops={op: run.ops for op, run in traced.loop_runs.items()},
        profiles=profiles,
        on_disk=options.cache,
    )
    return PricedStep(
        ordered=with_reuses(OrderedStep.of(traced, graph), workspaces),
        workspaces=workspaces,
        profiles=profiles,
        counts=options.counts or ("allocator" if is_limited(device_of_this_machine()) else "live"),
        reserve=options.reserve,
        optimizer=optimizer,
    )


def _profiles(traced: TracedGraph, options: Options) -> Mapping[tf.Operation, OpProfile]:
    """Measured seconds and workspaces, if the options ask for any; of a loop, the ops inside are measured."""
    if not options.workspaces and options.cost_model != "profiled":
        return {}
    inside = (op for run in traced.loop_runs.values() for op in run.ops)
    ops = list(dict.fromkeys([*traced.heavy, *inside]))
    return profile_ops(ops, on_disk=options.cache, on_progress=options.listener())


def _with_bytes(traced: TracedGraph, workspaces: Mapping[tf.Operation, int], reserve: int) -> DFGraph:
    """The traced graph with the workspaces of its ops and the bytes that the user reserves."""
    graph = replace(traced.graph, tensors=with_lent(traced, workspaces))
    ops = []
    for op, group in zip(graph.ops, traced.groups, strict=True):
        left = sum(graph.tensors[t].size for t in op.outputs)
        ops.append(replace(op, workspace=max(held_by_group(traced, group, workspaces) - left, 0)))
    return replace(graph, ops=tuple(ops), fixed_size=graph.fixed_size + reserve)

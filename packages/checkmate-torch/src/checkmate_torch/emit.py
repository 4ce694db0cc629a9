"""From a schedule to two FX graphs that follow it, recomputations and frees included.

Generated FX code drops a value right after its last use, and a schedule made by liveness frees a tensor
right after its last read. So the order of the nodes is the schedule, frees included; where a schedule frees
later, a node that does nothing uses the value until then. An op that reuses an operand that dies with it runs
in place. A read uses the latest copy, and views are made again from it. A value that forward makes and
backward uses is saved: it is an output of the forward graph and an input of the backward graph.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, map_arg

from checkmate import Schedule, simulate
from checkmate.framework import late_frees
from checkmate_torch.in_place import overwrites
from checkmate_torch.private import (
    SavedForBackwardsAOTOutput,
    run_and_save_rng_state,
    run_with_rng_state,
    specialized,
)
from checkmate_torch.safety import as_copy, is_new_statistic, is_random, rng_state_like
from checkmate_torch.symbols import is_symbol
from checkmate_torch.traced_graph import TracedGraph

__all__ = ["Watch", "emit", "emit_unbroken"]


Watch = Callable[[int], object]
"""Called with each op right before it runs, and with the number of ops when a step is over."""


def emit(
    traced: TracedGraph, schedule: Schedule, watch: Watch | None = None, *, in_place: bool = True
) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph that execute a valid schedule of ``traced.graph``.

    ``in_place=False`` leaves every op functional, as compilers need it.
    """
    if traced.boundary is None:
        raise ValueError("a graph without a boundary is not split: use emit_unbroken")
    *runs, end = _runs(traced, schedule, in_place=in_place)
    split = schedule.sequence.tolist().index(traced.boundary)
    early, late = runs[:split], runs[split + 1 :]
    repeated = _repeated(schedule)

    forward = _Pass(traced, repeated, watch)
    for primal in traced.primals:
        forward.add_placeholder(primal)
    for run in early:
        forward.compute(run)
    returned = [forward.value(x) for x in traced.forward_outputs]
    forward.mark(traced.boundary)

    backward = _Pass(traced, repeated, watch, before=forward)
    saved, sizes = _saved_sources(traced, [*runs[split:], end], forward)
    replayed = sorted(forward.states.keys() & {run.op for run in late})
    for size in sizes:
        backward.add_placeholder(size)
    for op in replayed:
        backward.add_state(op, forward.states[op])
    for source in (*saved, *traced.tangents):
        backward.add_placeholder(source)
    backward.hold(backward.copies(runs[split].held))
    for run in late:
        backward.compute(run)
    backward.mark(end.op)
    backward.hold(backward.copies(end.held))
    backward.graph.output([backward.value(x) for x in traced.gradients])

    kept = [*(forward.states[op] for op in replayed), *(forward.value(s) for s in (*saved, *sizes))]
    forward.graph.output([*returned, *kept])
    roles = list(traced.joint.graph.output_node().meta["desc"])
    saved_roles = [SavedForBackwardsAOTOutput(k) for k in range(len(kept))]
    return (
        forward.module([*roles[: len(returned)], *saved_roles]),
        backward.module(roles[len(returned) :]),
    )


def emit_unbroken(traced: TracedGraph, schedule: Schedule, watch: Watch | None = None) -> GraphModule:
    """The one graph that executes a valid schedule of a ``traced.graph`` without a boundary.

    It returns the forward outputs.
    """
    whole = _Pass(traced, _repeated(schedule), watch)
    for primal in traced.primals:
        whole.add_placeholder(primal)
    *runs, end = _runs(traced, schedule)
    for run in runs:
        whole.compute(run)
    whole.mark(end.op)
    whole.hold(whole.copies(end.held))
    whole.graph.output([whole.value(x) for x in traced.forward_outputs])
    roles = list(traced.joint.graph.output_node().meta["desc"])
    return whole.module(roles[: len(traced.forward_outputs)])


class _Run(NamedTuple):
    """One run of an op.

    Attributes:
        op: its number.
        held: the joint nodes whose present copies must outlive it.
        reused: the tensors in whose place it allocates.
    """

    op: int
    held: tuple[Node, ...]
    reused: frozenset[int]


def _runs(traced: TracedGraph, schedule: Schedule, *, in_place: bool = True) -> list[_Run]:
    """The runs of a schedule, and the end as a run of no op: its number is the number of ops.

    New values of inputs are not among the held: the runtime drops them after forward.
    """
    late, timeline = late_frees(traced.graph, schedule), simulate(traced.graph, schedule)
    sources = {t: n for t, n in traced.source_of.items() if n not in traced.copied_back}
    steps = [step for step, code in enumerate(schedule.codes.tolist()) if code >= 0]
    reused = [timeline.reused_at(step) if in_place else frozenset[int]() for step in steps]
    ops = [*zip(schedule.sequence.tolist(), reused, strict=True), (traced.graph.n_ops, frozenset[int]())]
    return [
        _Run(op, tuple(sources[t] for t in late.get(k, ()) if t in sources), over)
        for k, (op, over) in enumerate(ops)
    ]


def _repeated(schedule: Schedule) -> frozenset[int]:
    """The ops that run several times."""
    return frozenset(op for op, runs in Counter(schedule.sequence.tolist()).items() if runs > 1)


def _saved_sources(
    traced: TracedGraph, runs: Sequence[_Run], forward: _Pass
) -> tuple[list[Node], list[Node]]:
    """The joint nodes whose forward values the runs from the boundary on use, in the order AOTAutograd needs.

    Tensors that an ``autograd.Function`` put on its ctx, without a version check, are last. Symbolic sizes
    are returned apart: saving one keeps no tensor alive.
    """
    made: set[Node] = set(traced.tangents)
    saved: dict[Node, None] = {}

    def read(node: Node) -> None:
        for source in traced.sources(node):
            if is_symbol(source) and not forward.is_known(source):
                map_arg((source.args, source.kwargs), read)
            elif source not in made:
                saved[source] = None

    for op, held, _ in runs:
        node = traced.nodes[op] if op < len(traced.nodes) else None
        if node is not None:
            map_arg((as_copy(node)[1] if op in forward.done else node.args, node.kwargs), read)
        map_arg(held, read)
        if node is not None:
            made.update((node, *(user for user in node.users if user.target is operator.getitem)))
    map_arg(traced.gradients, read)
    shown = [(source, source.meta.get("val")) for source in saved if source.op != "get_attr"]
    tensors = [source for source, value in shown if isinstance(value, torch.Tensor)]
    sizes = [source for source, value in shown if isinstance(value, torch.SymInt)]
    return sorted(tensors, key=lambda s: bool(s.meta.get("saved_tensor_with_no_vc_check"))), sizes


def keep_alive(*_values: object) -> None:
    """Use values in generated code, so that it does not drop them before."""


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """A function with a name, as generated code needs it, that calls any callable."""

    watch: Watch
    __name__: ClassVar[str] = "mark"

    def __call__(self, op: int) -> None:
        self.watch(op)


class _Pass:
    """One graph under construction: copies of joint nodes, one for each scheduled run.

    Attributes:
        graph: the nodes written so far.
        values: joint node → the node here that holds its latest value.
        states: random op → the node that holds the random state before its first run.
        done: ops that have run, in this pass or the one before.
    """

    def __init__(
        self,
        traced: TracedGraph,
        repeated: frozenset[int],
        watch: Watch | None,
        before: _Pass | None = None,
    ) -> None:
        self.traced = traced
        self.repeated = repeated
        self.watch = _Mark(watch) if watch is not None else None
        self.graph = Graph()
        self.values: dict[Node, Node] = {}
        self.states: dict[int, Node] = {}
        self.done: set[int] = set(before.done) if before else set()
        self.views: dict[Node, list[Node]] = {}  # source → its joint views in `values`
        self.unread: list[Node] = []  # views and items of ops: erased at the end if nothing reads them

    def add_placeholder(self, node: Node) -> None:
        """Take the value of a joint node as an argument."""
        self.values[node] = self._with_meta(self.graph.placeholder(node.name), node)

    def add_state(self, op: int, state: Node) -> None:
        """Take the random state before the first run of ``op`` as an argument."""
        self.states[op] = self._with_meta(self.graph.placeholder(f"rng_state_{op}"), state)

    def mark(self, op: int) -> None:
        """Let the generated code say that an op is next."""
        if self.watch is not None:
            self.graph.call_function(self.watch, (op,))

    def copies(self, sources: Sequence[Node]) -> list[Node]:
        """The latest copies of some joint nodes."""
        return [self.values[source] for source in sources]

    def hold(self, copies: Sequence[Node]) -> None:
        """Keep copies until here."""
        if copies:
            self.graph.call_function(keep_alive, tuple(copies))

    def compute(self, run: _Run) -> None:
        """Run an op, for the first time or again; views of its older copy are forgotten."""
        op, node = run.op, self.traced.nodes[run.op]
        if node is None:
            raise RuntimeError("the loss boundary runs once, between the passes")
        held = self.copies(run.held)
        self.mark(op)
        items = [user for user in node.users if user.target is operator.getitem]
        for source in (node, *items):
            for view in self.views.pop(source, ()):
                self.values.pop(view, None)
        made = self._run(op, node, run.reused)
        if isinstance(node.meta.get("val"), torch.Tensor):
            self.values[node] = made
        for item in items:
            if op not in self.done or not is_new_statistic(item):
                self.values[item] = self._item(made, item.args[1], item)
        self.hold(held)
        self.done.add(op)
        self._read_sizes((node, *items))

    def _read_sizes(self, made: Sequence[Node]) -> None:
        """Read the sizes of new tensors while they are resident; unread ones are erased later."""
        for user in (user for node in made for user in node.users):
            if is_symbol(user) and user not in self.values and self.is_known(user):
                self.value(user)

    def value(self, arg: object) -> Argument:
        """The value of an argument of a joint node here: the latest copy, a view made again, or a number."""
        if not isinstance(arg, Node):
            return arg  # type: ignore[return-value]
        if arg in self.values:
            return self.values[arg]
        if is_symbol(arg) and not self.is_known(arg):
            return specialized(arg.meta["val"])
        if self.traced.is_op(arg):
            raise RuntimeError(f"the schedule reads {arg.name!r} where it isn't resident")
        copy = self.graph.node_copy(arg, self.value)
        self.values[arg] = copy
        self.unread.append(copy)
        for source in self.traced.sources(arg):
            self.views.setdefault(source, []).append(arg)
        return copy

    def is_known(self, symbol: Node) -> bool:
        """Whether a size can be read from what is resident, or computed from sizes that can."""
        if symbol in self.values:
            return True
        return symbol.op == "call_function" and all(
            self.is_known(arg) if is_symbol(arg) else self._resident(arg) for arg in symbol.all_input_nodes
        )

    def _resident(self, node: Node) -> bool:
        sources = self.traced.sources(node)
        return all(self.is_known(s) if is_symbol(s) else s in self.values for s in sources)

    def module(self, roles: Sequence[object]) -> GraphModule:
        """The finished graph; ``roles`` describe its outputs."""
        self.graph.output_node().meta["desc"] = list(roles)
        for node in reversed(self.unread):
            if not node.users:
                self.graph.erase_node(node)
        return GraphModule(self.traced.joint, self.graph)

    def _run(self, op: int, node: Node, reused: frozenset[int]) -> Node:
        for call in overwrites(node) if reused else ():
            if self.traced.tensor_of[call.operand] in reused:
                return self._call(call.target, *map_arg((call.args, call.kwargs), self.value), node)
        target, given = as_copy(node) if op in self.done else (node.target, node.args)
        args, kwargs = map_arg((given, node.kwargs), self.value)
        if is_random(node) and op in self.repeated:
            if op in self.states:
                replay = (self.states[op], target, *args)
                return self._call(run_with_rng_state, replay, kwargs, node)
            pair = self.graph.call_function(run_and_save_rng_state, (target, *args), kwargs)  # type: ignore[arg-type]
            self.states[op] = self.graph.call_function(operator.getitem, (pair, 0))
            self.states[op].meta["val"] = rng_state_like(node)
            return self._with_meta(self.graph.call_function(operator.getitem, (pair, 1)), node)
        return self._call(target, args, kwargs, node)

    def _call(self, target: object, args: object, kwargs: object, node: Node) -> Node:
        return self._with_meta(self.graph.call_function(target, args, kwargs), node)  # type: ignore[arg-type]

    def _item(self, run: Node, k: object, item: Node) -> Node:
        copy = self._with_meta(self.graph.call_function(operator.getitem, (run, k)), item)  # type: ignore[arg-type]
        self.unread.append(copy)
        return copy

    @staticmethod
    def _with_meta(copy: Node, node: Node) -> Node:
        copy.meta = dict(node.meta)
        return copy

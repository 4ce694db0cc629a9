"""Write one FX graph, forward or backward, that runs copies of joint nodes in the order of a schedule.

A read uses the latest copy of a tensor. Views are made again from it, with fewer steps than in the model:

    detach(x), alias(x)         ↦ x
    view(x) of x's own layout   ↦ x
    view(view(x, a), b)         ↦ view(x, b)
    t(t(x))                     ↦ x

Autograd does not record generated code, so ``detach`` has no effect there.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, Target, map_arg

from checkmate import Schedule
from checkmate_torch.ops.fast_functions import fastest_call
from checkmate_torch.ops.in_place import Overwrite, overwrites
from checkmate_torch.ops.recompute_rules import (
    as_copy,
    is_batch_norm_training,
    is_new_statistic,
    is_random,
    rng_state_like,
)
from checkmate_torch.ops.sizes import is_symbol
from checkmate_torch.private import run_and_save_rng_state, run_with_rng_state, specialized
from checkmate_torch.running.cuda_graph import RandomPoints
from checkmate_torch.running.fusing import FusedKernel
from checkmate_torch.tracing.traced_graph import TracedGraph
from checkmate_torch.tracing.written_inputs import overwrite_of

__all__ = ["GraphWriter", "ScheduledRun", "Watch"]

_aten = torch.ops.aten
_SAME = frozenset({_aten.alias.default, _aten.detach.default})
_RESHAPES = frozenset({_aten._unsafe_view.default, _aten.view.default})

Watch = Callable[[int], object]
"""Called with each op right before it runs, and with the number of ops when a step is over."""


class ScheduledRun(NamedTuple):
    """One run of an op.

    Attributes:
        number: place of the run in its schedule, from 0.
        op: index of the op.
        held: joint nodes whose current copies must stay alive until the run is over.
        reused: tensors whose memory the op's outputs take over.
    """

    number: int
    op: int
    held: tuple[Node, ...]
    reused: frozenset[int]


def keep_alive(*_values: object) -> None:
    """Do nothing: a call in generated code keeps its arguments alive until then."""


def _named(watch: Watch) -> Watch:
    """Wrap a callable in a function: generated code needs something with a name."""

    def mark(op: int) -> None:
        watch(op)

    return mark


class GraphWriter:
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
        schedule: Schedule,
        watch: Watch | None,
        kernels: Mapping[int, FusedKernel] | None,
        before: GraphWriter | None = None,
        points: RandomPoints | None = None,
    ) -> None:
        self.traced, self.kernels, self.points = traced, kernels or {}, points
        self.repeated = {op for op, runs in Counter(schedule.sequence.tolist()).items() if runs > 1}
        self.watch = _named(watch) if watch is not None else None
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

    def follow(self, runs: Sequence[ScheduledRun]) -> None:
        """Compute runs in their order, by kernels where there are any."""
        following = iter(runs)
        for run in following:
            kernel = self.kernels.get(run.number)
            if kernel is None:
                self.compute(run)
            else:
                self.compute_fused(kernel)
                for _ in kernel.ops[1:]:
                    next(following)

    def compute_fused(self, kernel: FusedKernel) -> None:
        """Run the ops of a kernel at once; later code can read only the values that the kernel returns."""
        for op in kernel.ops:
            self.mark(op)
        call = self.graph.call_function(kernel, tuple(map(self.value, kernel.sources)))
        call.meta["val"] = tuple(node.meta["val"] for node in kernel.outputs)
        for op in kernel.ops:
            self._forget(op)
        for k, node in enumerate(kernel.outputs):
            self.values[node] = self._item(call, k, node)
        self.done.update(kernel.ops)
        self._read_sizes(kernel.outputs)

    def compute(self, run: ScheduledRun) -> None:
        """Run an op, for the first time or again; views of its older copy are forgotten."""
        op, node = run.op, self.traced.node_of(run.op)
        held = self.copies(run.held)
        self.mark(op)
        items = _items(node)
        self._forget_views((node, *items))
        made = self._run(op, node, run.reused)
        if isinstance(node.meta.get("val"), torch.Tensor):
            self.values[node] = made
        for item in items:
            if not is_new_statistic(item):
                self.values[item] = self._item(made, item.args[1], item)
            elif op not in self.done:
                self.values[item] = self._new_statistic(made, node, item)
        self.hold(held)
        self.done.add(op)
        self._read_sizes((node, *items))

    def _forget(self, op: int) -> None:
        """Forget the values of an op, which are not resident any more, and their views."""
        node = self.traced.node_of(op)
        stale = [node, *(x for x in _items(node) if op not in self.done or not is_new_statistic(x))]
        self._forget_views(stale)
        for each in stale:
            self.values.pop(each, None)

    def _forget_views(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            for view in self.views.pop(node, ()):
                self.values.pop(view, None)

    def _read_sizes(self, made: Sequence[Node]) -> None:
        """Read the sizes of new tensors while they are resident; unread ones are erased later."""
        for user in (user for node in made for user in node.users):
            if is_symbol(user) and user not in self.values and self.is_known(user):
                self.value(user)

    def value(self, arg: object) -> Argument:
        """What a joint node's argument becomes here: the latest copy, a view made again, or a number."""
        if not isinstance(arg, Node):
            return arg  # type: ignore[return-value]
        if arg in self.values:
            return self.values[arg]
        if is_symbol(arg) and not self.is_known(arg):
            return specialized(arg.meta["val"])
        if self.traced.is_op(arg):
            raise RuntimeError(f"the schedule reads {arg.name!r} where it isn't resident")
        copy = self._view(arg)
        self.values[arg] = copy
        self.unread.append(copy)
        for source in self.traced.sources(arg):
            self.views.setdefault(source, []).append(arg)
        return copy

    def _view(self, node: Node) -> Node:
        """Make a view, or show a constant."""
        if node.op != "call_function":
            return self.graph.node_copy(node)
        reshapes = node.target in _RESHAPES
        given = (_reshaped(self.traced, node), *node.args[1:]) if reshapes else node.args
        args, kwargs = map_arg((given, node.kwargs), self._argument)
        return self._call(node.target, args, kwargs, node)

    def _argument(self, node: Node) -> Argument:
        """The value of a node, by as few views as possible."""
        return self.value(_shortest(self.traced, node))

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

    def write_inputs(self) -> None:
        """Write the new values of inputs that no op has written, now that nothing reads the old ones."""
        for place, value in self.traced.written.items():
            if (new := self.value(value)) is not self.values[place]:
                self.graph.call_function(_aten.copy_.default, (self.values[place], new))

    def _new_statistic(self, made: Node, node: Node, item: Node) -> Node:
        """A running statistic after the first run of a batch norm: the buffer, if it is written in place."""
        k = cast(int, item.args[1])
        if node in self.traced.in_place:
            return cast(Node, self.value(node.args[k]))
        return self._item(made, k, item)

    def _is_in_place(self, node: Node) -> bool:
        """Whether an op writes into an input; a kernel before it may have made its operand a new tensor."""
        if node not in self.traced.in_place or is_batch_norm_training(node):
            return node in self.traced.in_place
        return cast(Node, self.value(node.args[0])).op == "placeholder"

    def _run_in_place(self, node: Node) -> Node:
        """Run an op that writes the new value of an input into the input."""
        if is_batch_norm_training(node):
            args, kwargs = map_arg((node.args, node.kwargs), self._argument)
            return self._call(_aten._native_batch_norm_legit.default, args, kwargs, node)
        call = cast(Overwrite, overwrite_of(node))
        self._call(call.target, *map_arg((call.args, call.kwargs), self._argument), node)
        return cast(Node, self.value(call.operand))

    def _run(self, op: int, node: Node, reused: frozenset[int]) -> Node:
        if op not in self.done and self._is_in_place(node):
            return self._run_in_place(node)
        for call in overwrites(node) if reused else ():
            if self.traced.tensor_of[call.operand] in reused:
                return self._call(call.target, *map_arg((call.args, call.kwargs), self._argument), node)
        target, given = as_copy(node) if op in self.done else (node.target, node.args)
        args, kwargs = map_arg((given, node.kwargs), self._argument)
        if is_random(node) and op in self.repeated:
            return self._run_random(op, target, args, kwargs, node)
        return self._call(target, args, kwargs, node)

    def _run_random(self, op: int, target: Any, args: Any, kwargs: Any, node: Node) -> Node:
        """Run a random op that runs more than once, each time with the same numbers."""
        if self.points is not None:
            if op in self.done:
                return self._call(self.points.further_run(op), (target, *args), kwargs, node)
            self.graph.call_function(self.points.first_run(op))
            return self._call(target, args, kwargs, node)
        if op in self.states:
            return self._call(run_with_rng_state, (self.states[op], target, *args), kwargs, node)
        pair = self.graph.call_function(run_and_save_rng_state, (target, *args), kwargs)
        self.states[op] = self.graph.call_function(operator.getitem, (pair, 0))
        self.states[op].meta["val"] = rng_state_like(node)
        return self._with_meta(self.graph.call_function(operator.getitem, (pair, 1)), node)

    def _call(self, target: Target, args: object, kwargs: object, node: Node) -> Node:
        function, given = fastest_call(target, args)  # type: ignore[arg-type]
        made = self.graph.call_function(function, given, kwargs)  # type: ignore[arg-type]
        return self._with_meta(made, node)

    def _item(self, run: Node, k: object, item: Node) -> Node:
        copy = self._with_meta(self.graph.call_function(operator.getitem, (run, k)), item)  # type: ignore[arg-type]
        self.unread.append(copy)
        return copy

    @staticmethod
    def _with_meta(copy: Node, node: Node) -> Node:
        copy.meta = dict(node.meta)
        return copy


def _items(node: Node) -> list[Node]:
    """The nodes that pick outputs of an op."""
    return [user for user in node.users if user.target is operator.getitem]


def _shortest(traced: TracedGraph, node: Node) -> Node:
    """A joint node with the same value as ``node``, behind as few views as possible."""
    if traced.is_op(node) or node.op != "call_function":
        return node
    if node.target in _SAME:
        return _shortest(traced, _operand(node))
    if node.target is _aten.t.default and not traced.is_op(before := _operand(node)):
        return _shortest(traced, _operand(before)) if before.target is _aten.t.default else node
    if node.target in _RESHAPES and (layout := _layout(node)) is not None:
        source = _reshaped(traced, node)
        return source if _layout(source) == layout else node
    return node


def _reshaped(traced: TracedGraph, node: Node) -> Node:
    """The node that a reshaping view shows in another shape; reshapes in between are skipped."""
    source = _shortest(traced, _operand(node))
    while source.target in _RESHAPES and not traced.is_op(source):
        before = _shortest(traced, _operand(source))
        if not _shows(before, node):
            break
        source = before
    return source


def _operand(node: Node) -> Node:
    return cast(Node, node.args[0])


def _layout(node: Node) -> tuple[torch.Size, tuple[int, ...]] | None:
    """Shape and strides of a node's tensor; None if it has none, or if a size may change."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    known = not any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return (value.shape, value.stride()) if known else None


def _shows(source: Node, node: Node) -> bool:
    """Whether ``source`` viewed in the node's shape has the node's strides, also in dimensions of size 1."""
    given, wanted = _layout(source), _layout(node)
    if given is None or wanted is None:
        return False
    view = torch.empty_strided(*given, device="meta").view(wanted[0])
    return (view.shape, view.stride()) == wanted

"""Read PyTorch's joint graph as a DFGraph: which nodes are ops, which are views, which bytes are one tensor.

AOTAutograd traces forward and backward of a module into one functional FX graph whose nodes carry fake
tensors. Fake tensors that share a storage are one tensor of ours, and a node that allocates new storage is an
*op*. Everything else (views, ``getitem``, shape arithmetic) costs nothing and is made again wherever it is
read.

Between the two passes is an op of its own, the *boundary*: the caller's loss. It reads the outputs of
forward, makes the incoming gradients (tangents), and runs exactly once. A graph that computes its own loss
and makes its own tangent has no boundary.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch.fx import Node
from torch.fx.node import Argument

from checkmate import DFGraph, Op, Tensor, UnsupportedModelError
from checkmate_torch.ops.in_place import overwrites
from checkmate_torch.ops.recompute_rules import (
    FIRST_STATISTIC,
    as_copy,
    correct_norms,
    forget_running_statistics,
    is_batch_norm_training,
    is_new_statistic,
    is_random,
    may_run_twice,
    rng_state_like,
    statistics_are_read,
    storage_like,
    writes,
)
from checkmate_torch.ops.storages import CUDA_GRANULE, allocated_bytes, shown_by, storage_key
from checkmate_torch.private import (
    HOLDS_TANGENTS,
    InputMutationAOTOutput,
    Joint,
    PlainAOTInput,
    WrittenInput,
    tree_leaves,
)
from checkmate_torch.tracing.loss_bytes import LossBytes, loss_bytes
from checkmate_torch.tracing.traced_graph import TracedGraph, ancestors, shown_name
from checkmate_torch.tracing.written_inputs import written_early

__all__ = ["trace_joint"]


def trace_joint(
    joint: Joint,
    *,
    unbroken: bool = False,
    reserve: int = 0,
    loss: int | LossBytes | None = None,
    name: str = "",
    overwritten: Sequence[int] = (),
) -> TracedGraph:
    """Read a joint graph as a DFGraph that has yet to be priced: costs are 0.

    Args:
        joint: its module changes in place: batch-norm backward nodes lose their (unused) running statistics,
            and norms show the types that a CPU gives them.
        unbroken: whether the graph computes its own loss and needs no tangents. Then it has no boundary, its
            outputs are resident to its end, and an op may be recomputed even if it reads an input that the
            runtime overwrites after the end.
        reserve: further bytes that the step holds throughout, e.g. optimizer state.
        loss: the bytes of the caller's loss, as far as known; see :mod:`checkmate_torch.tracing.loss_bytes`.
        name: name of the graph.
        overwritten: further inputs, by number, that are overwritten before the backward pass.

    Raises:
        UnsupportedModelError: if a part of the graph can't be planned.
    """
    builder = _Builder(joint, overwritten, broken=not unbroken)
    builder.add_placeholders()
    late = set[Node]() if unbroken else builder.backward  # after the boundary
    for node in builder.live:
        if node not in late:
            builder.add_node(node)
    if not unbroken:
        builder.add_boundary(loss)
    for node in builder.live:
        if node in late:
            builder.add_node(node)
    return builder.traced(reserve, name)


class _Builder:
    """Collects ops and tensors while walking the joint graph in base order.

    ``broken``: forward returns its outputs at a boundary; otherwise the graph is one piece, and its outputs
    are resident to its end.
    """

    def __init__(self, joint: Joint, overwritten: Sequence[int], *, broken: bool) -> None:
        self.joint, self.broken = joint.module, broken
        correct_norms(self.joint)
        forget_running_statistics(self.joint)
        graph, n = self.joint.graph, joint.n_outputs
        placeholders = graph.find_nodes(op="placeholder")
        self.primals, self.tangents = placeholders[: joint.n_primals], placeholders[joint.n_primals :]
        output = graph.output_node()
        returned = tuple(cast("Sequence[Argument]", output.args[0]))
        self.forward_outputs, self.gradients = returned[:n], returned[n:]
        self.output_roles = list(output.meta["desc"])[:n]
        # Writes of a custom function's backward pass; forward's writes are among its outputs.
        self.writes = [x for x in graph.nodes if writes(x) and set(x.all_input_nodes) & set(self.primals)]
        self.live, self.backward = self._split()
        places = {p.meta["desc"]: p for p in self.primals}
        pairs = zip(self.output_roles, self.forward_outputs, strict=True)
        self.in_place = written_early(
            (places[role.mutated_input], value) for role, value in pairs if isinstance(role, WrittenInput)
        )

        self.ops: list[Op] = []
        self.nodes: list[Node | None] = []
        self.tensors: list[Tensor] = []
        self.inputs: list[int] = []
        self.index: dict[int, int] = {}  # storage → tensor
        self.tensor_of: dict[Node, int] = {}
        self.tokens: list[int] = []
        self.unread: list[Node] = []
        self.kept_bytes = 0  # all the time: random states for replays, new running statistics
        self.device: torch.device | None = None
        self.user_outputs = self._user_outputs()
        self.overwritten: set[int] = set()
        self.written_later = overwritten
        self.boundary: int | None = None

    def _split(self) -> tuple[list[Node], set[Node]]:
        """Live call nodes in trace order, and the backward ones; ancestors of forward outputs are forward."""
        needed_forward = ancestors(self.forward_outputs)
        live = needed_forward | ancestors((*self.gradients, *self.writes))
        late = set(self.tangents)
        called, backward = list[Node](), set[Node]()
        for node in self.joint.graph.nodes:
            if node not in live or node.op in ("placeholder", "output"):
                continue
            tagged = node.meta.get("partitioner_tag") == "is_backward"
            if node not in needed_forward and (tagged or any(arg in late for arg in node.all_input_nodes)):
                late.add(node)
                backward.add(node)
            called.append(node)
        return called, backward

    def _user_outputs(self) -> list[Node]:
        """Forward outputs that the caller holds; without a boundary, new values of mutated inputs too."""
        pairs = zip(self.forward_outputs, self.output_roles, strict=True)
        return [
            n
            for n, role in pairs
            if isinstance(n, Node)
            and not (
                isinstance(role, InputMutationAOTOutput | WrittenInput)
                and (self.broken or is_new_statistic(n))
            )
        ]

    def _mutated_primals(self) -> set[Node]:
        """Placeholders that are overwritten after forward: by the runtime, by other code, or in backward."""
        late = {arg for node in self.writes for arg in node.all_input_nodes}
        roles = self.output_roles if self.broken else ()
        mutated = [r.mutated_input for r in roles if isinstance(r, InputMutationAOTOutput | WrittenInput)]
        mutated += map(PlainAOTInput, self.written_later)
        return {p for p in self.primals if p in late or p.meta["desc"] in mutated}

    def add_placeholders(self) -> None:
        for node in self.primals:
            for value in shown_by(node):
                self._add_input(node, value)
        self.overwritten = {self.tensor_of[p] for p in self._mutated_primals() if p in self.tensor_of}

    def add_node(self, node: Node) -> None:
        if node.op == "get_attr":
            value = node.meta.get("val", getattr(self.joint, str(node.target), None))
            if isinstance(value, torch.Tensor):
                self._add_input(node, value)
            return
        if node.op != "call_function":
            raise UnsupportedModelError(f"node {node.name!r} is a {node.op}: only functions can be planned")
        values = shown_by(node)
        keys = [storage_key(v) for v in values]
        fresh = [k for k in dict.fromkeys(keys) if k not in self.index]
        if fresh and len(fresh) < len(set(keys)):
            raise UnsupportedModelError(
                f"{node.target} returns new tensors beside views of old ones: that can't be planned"
            )
        if fresh or node in self.writes:
            self._add_op(node, [values[keys.index(k)] for k in fresh])
        if isinstance(node.meta.get("val"), torch.Tensor):
            self.tensor_of[node] = self.index[keys[0]]

    def _add_input(self, node: Node, value: torch.Tensor) -> None:
        key = storage_key(value)
        if key not in self.index:
            self.inputs.append(self._tensor(node.name, value))
        self.tensor_of[node] = self.index[key]

    def _add_op(self, node: Node, fresh: list[torch.Tensor]) -> None:
        reads = self._reads((node.args, node.kwargs))
        self._add_items(node)
        name = shown_name(node)
        outputs = [self._tensor(f"{name}.{k}" if k else name, v) for k, v in enumerate(fresh)]
        self._free_statistics(node, outputs)
        if (like := storage_like(node)) is not None:
            self.tensors[outputs[0]] = replace(self.tensors[outputs[0]], size=allocated_bytes(like))
        if node in self.writes:
            outputs.append(self._token(node))
        state = rng_state_like(node).nbytes if is_random(node) else 0
        self.kept_bytes += state  # kept for a replay, which needs the same bytes again while it runs
        again = self._reads((as_copy(node)[1], node.kwargs))
        self.ops.append(
            Op(
                name=name,
                inputs=tuple(reads),
                outputs=tuple(outputs),
                cost=0.0,
                workspace=state,
                recomputable=not self._runs_once(node, outputs) and self.overwritten.isdisjoint(again),
                backward=node in self.backward,
            )
        )
        self.nodes.append(node)

    def _free_statistics(self, node: Node, outputs: Sequence[int]) -> None:
        """Count no tensors for what an op writes in place, nor for new statistics: a copy makes none."""
        is_norm, in_place = is_batch_norm_training(node), node in self.in_place
        if in_place or (is_norm and not self.broken):
            for t in outputs[FIRST_STATISTIC if is_norm else 0 :]:
                self.kept_bytes += 0 if in_place else self.tensors[t].size  # they stay to the end
                self.tensors[t] = replace(self.tensors[t], size=0)

    def _runs_once(self, node: Node, outputs: list[int]) -> bool:
        """Whether an op may not run again."""
        writes_in_place = node in self.in_place and not is_batch_norm_training(node)
        held = any(self._shows(user, outputs) for user in self.user_outputs)
        return held or writes_in_place or not may_run_twice(node) or statistics_are_read(node)

    def _add_items(self, node: Node) -> None:
        """Give every output of an op a node, even if no node reads it: a schedule may hold it."""
        values = node.meta.get("val")
        known = {user.args[1] for user in node.users if user.target is operator.getitem}
        for k, value in enumerate(values if isinstance(values, tuple | list) else ()):
            if isinstance(value, torch.Tensor) and k not in known:
                with self.joint.graph.inserting_after(node):
                    item = self.joint.graph.call_function(operator.getitem, (node, k))
                item.meta.update(node.meta, val=value)
                self.unread.append(item)

    def add_boundary(self, loss: int | LossBytes | None) -> None:
        self.boundary = len(self.ops)
        made: list[int] = []
        for node in self.tangents:
            for value in shown_by(node):
                made.append(self._tensor(node.name, value))
                self.tensor_of[node] = made[-1]
        charged = loss_bytes(loss, sum(self.tensors[t].size for t in made))
        loss_state = len(self.tensors)
        self.tensors.append(Tensor(name="loss state", size=charged.kept))
        returned = [n for n in self.forward_outputs if isinstance(n, Node)]
        reads = dict.fromkeys(self.tensor_of[n] for n in returned if n in self.tensor_of)
        self.ops.append(
            Op(
                name="loss",
                inputs=tuple(reads),
                outputs=(*made, loss_state),
                cost=0.0,
                workspace=charged.workspace,
                recomputable=False,
            )
        )
        self.nodes.append(None)

    def traced(self, reserve: int, name: str) -> TracedGraph:
        self.tensor_of |= {n: self.index[storage_key(n.meta["val"])] for n in self.unread}
        held = [n for n in (*self.user_outputs, *self.gradients) if isinstance(n, Node)]
        shown = (self.tensor_of[n] for n in held if n in self.tensor_of)
        made = self.ops[self.boundary].outputs if self.boundary is not None else ()
        kept = made if HOLDS_TANGENTS else made[-1:]  # the last one is the state of the loss
        outputs = dict.fromkeys([*shown, *self.tokens, *kept])
        graph = DFGraph(
            ops=tuple(self.ops),
            tensors=tuple(self.tensors),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            fixed_size=reserve + self.kept_bytes,
            cost_unit="s",
            name=name,
        )
        graph = self._with_reuses(graph)
        return TracedGraph(
            graph=graph,
            joint=self.joint,
            nodes=tuple(self.nodes),
            boundary=self.boundary,
            tensor_of=self.tensor_of,
            primals=tuple(self.primals),
            tangents=tuple(self.tangents),
            forward_outputs=self.forward_outputs,
            gradients=self.gradients,
            in_place=self.in_place,
            before_boundary=tuple(
                v
                for v, op in enumerate(self.ops[: self.boundary or 0])
                if not self.overwritten.isdisjoint(op.inputs)
            ),
        )

    def _with_reuses(self, graph: DFGraph) -> DFGraph:
        """Name for each op the tensor that it may overwrite with its output: of several, the least read one.

        A tensor of the other pass is never overwritten: autograd, or the caller, may still need it. In the
        forward pass only sums over pieces, and results that are written in pieces, overwrite a tensor.
        """
        ops, first = list(graph.ops), -1 if self.boundary is None else self.boundary
        for v, node in enumerate(self.nodes):
            if node is None or (v < first and not node.meta.get("accumulates")):
                continue
            found = {self.tensor_of[call.operand] for call in overwrites(node)} - {*graph.outputs}
            made = [t for t in found if graph.producer[t] > first or v < first]
            if made:
                ops[v] = replace(ops[v], reuses=(min(made, key=lambda t: (len(graph.readers.row(t)), t)),))
        return replace(graph, ops=tuple(ops))

    def _tensor(self, name: str, value: torch.Tensor) -> int:
        size = allocated_bytes(value)  # numbers and random states may be on the CPU beside a GPU's tensors
        if value.dim() and (size > CUDA_GRANULE or value.device.type != "cpu"):
            self.device = self.device or value.device
            if value.device != self.device:
                raise UnsupportedModelError(
                    f"{name!r} is on {value.device}, other tensors are on {self.device}: one budget bounds "
                    "one device. Compile the part on each device alone"
                )
        self.index[storage_key(value)] = len(self.tensors)
        self.tensors.append(Tensor(name=name, size=size))
        return len(self.tensors) - 1

    def _token(self, node: Node) -> int:
        """A tensor of no bytes that represents a side effect: a graph output, so that the op must run."""
        self.tokens.append(len(self.tensors))
        self.tensors.append(Tensor(name=f"{node.name} done", size=0))
        return self.tokens[-1]

    def _reads(self, args: object) -> list[int]:
        """The tensors that arguments show, directly or through views, each once."""
        nodes = (n for n in tree_leaves(args) if isinstance(n, Node))
        keys = (storage_key(v) for n in nodes for v in shown_by(n))
        return list(dict.fromkeys(self.index[k] for k in keys if k in self.index))

    def _shows(self, node: Node, tensors: Sequence[int]) -> bool:
        return any(self.index.get(storage_key(v)) in tensors for v in shown_by(node))

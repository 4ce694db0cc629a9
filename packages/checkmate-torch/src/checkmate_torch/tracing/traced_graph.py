"""A joint graph of PyTorch beside its DFGraph: which nodes are ops, which tensor a node shows.

A node that is no op, such as a view, has the value of its sources.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from checkmate import DFGraph
from checkmate_torch.ops.recompute_rules import is_random, may_run_twice, writes
from checkmate_torch.ops.sizes import is_symbol
from checkmate_torch.private import InputMutationAOTOutput, Joint, WrittenInput

__all__ = ["TracedGraph", "ancestors", "shown_name"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedGraph:
    """A joint graph and its DFGraph.

    Attributes:
        graph: the training step.
        joint: the joint FX graph; forward nodes come before backward nodes.
        nodes: the FX node of each op of ``graph``; None for the boundary.
        boundary: index of the boundary op; None = the loss is part of the graph.
        tensor_of: index of the tensor (storage) that a tensor-valued node shows. A node with several
            outputs has none; its ``getitem`` users do.
        primals: placeholders of the forward pass: parameters, buffers, the batch.
        tangents: placeholders of the backward pass: the incoming gradients.
        forward_outputs: outputs of the forward graph, in order.
        gradients: outputs of the backward graph, in order; None where there is no gradient.
        in_place: ops whose first runs write new values into inputs.
        before_boundary: forward ops that read an input which is overwritten right after forward.
    """

    graph: DFGraph
    joint: GraphModule
    nodes: tuple[Node | None, ...]
    boundary: int | None
    tensor_of: Mapping[Node, int]
    primals: tuple[Node, ...]
    tangents: tuple[Node, ...]
    forward_outputs: tuple[Argument, ...]
    gradients: tuple[Argument, ...]
    in_place: frozenset[Node] = frozenset()
    before_boundary: tuple[int, ...] = ()

    @property
    def as_joint(self) -> Joint:
        """The joint graph with the numbers of its inputs and outputs, as AOTAutograd hands it over."""
        return Joint(module=self.joint, n_primals=len(self.primals), n_outputs=len(self.forward_outputs))

    def node_of(self, op: int) -> Node:
        """The FX node of an op, which is not the boundary."""
        return cast(Node, self.nodes[op])

    @property
    def in_sequence(self) -> list[int]:
        """The ops whose first runs must keep their order: random ones, and those with side effects."""
        ops = list(enumerate(zip(self.graph.ops, self.nodes, strict=True)))
        written = {t for _, (op, node) in ops if node is not None and writes(node) for t in op.inputs}
        return [
            v
            for v, (op, node) in ops
            if node is not None
            and (is_random(node) or not may_run_twice(node) or not written.isdisjoint(op.inputs))
        ]

    @property
    def loss_bytes(self) -> int:
        """Bytes that are charged for the caller's loss, besides outputs and their gradients."""
        if self.boundary is None:
            return 0
        loss = self.graph.ops[self.boundary]
        return loss.workspace + self.graph.tensors[loss.outputs[-1]].size

    @cached_property
    def op_nodes(self) -> frozenset[Node]:
        """The nodes that are ops."""
        return frozenset(node for node in self.nodes if node is not None)

    @property
    def returned(self) -> tuple[Argument, ...]:
        """The forward outputs that generated code returns."""
        roles = self.joint.graph.output_node().meta["desc"]
        pairs = zip(self.forward_outputs, roles, strict=False)
        return tuple(x for x, role in pairs if not isinstance(role, WrittenInput))

    @cached_property
    def written(self) -> Mapping[Node, Node]:
        """Placeholder → its new value, which forward writes into it."""
        roles = self.joint.graph.output_node().meta["desc"]
        places = {p.meta["desc"]: p for p in self.primals}
        pairs = zip(self.forward_outputs, roles, strict=False)
        return {places[r.mutated_input]: cast(Node, x) for x, r in pairs if isinstance(r, WrittenInput)}

    @cached_property
    def new_values(self) -> frozenset[Node]:
        """The new values of inputs, which are written or copied into the inputs by the end of forward."""
        roles = self.joint.graph.output_node().meta["desc"]
        pairs = zip(self.forward_outputs, roles, strict=False)
        kinds = InputMutationAOTOutput | WrittenInput
        return frozenset(n for n, role in pairs if isinstance(n, Node) and isinstance(role, kinds))

    @cached_property
    def source_of(self) -> Mapping[int, Node]:
        """Tensor → the node that makes it, or its placeholder; tokens and the loss state have no entry."""
        makers = (
            (t, node) for node, t in self.tensor_of.items() if node.op == "placeholder" or self.is_op(node)
        )
        return dict(reversed([*makers]))  # of several nodes the first

    def is_op(self, node: Node) -> bool:
        """Whether the node is one of the graph's ops, or picks an output of one."""
        if node.target is operator.getitem:
            node = node.args[0]  # type: ignore[assignment]
        return node in self.op_nodes

    def sources(self, node: Node) -> tuple[Node, ...]:
        """The ops (or items), placeholders, constants and sizes that make a node's value, through views."""
        if self.is_op(node) or is_symbol(node) or node.op in ("placeholder", "get_attr"):
            return (node,)
        return tuple(dict.fromkeys(s for arg in node.all_input_nodes for s in self.sources(arg)))


def shown_name(node: Node) -> str:
    """The name of a node for people; ``meta["piece"]`` says what a piece is a piece of."""
    return str(node.meta.get("piece", node.name))


def ancestors(values: Iterable[object]) -> set[Node]:
    """The nodes among these values, and all nodes that they are computed from."""
    found: set[Node] = set()
    stack = [n for n in values if isinstance(n, Node)]
    while stack:
        if (node := stack.pop()) not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found

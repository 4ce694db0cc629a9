"""From PyTorch's joint graph to the graph of a whole step: no boundary, and every parameter's update in it.

The loss is an op like any other, and its tangent, the number 1, is made in the graph. Each gradient is read
by an op that updates its parameter, as soon as no op can read the old value any more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from checkmate import DFGraph, Op, Schedule, Tensor, UnsupportedModelError
from checkmate.analysis import late_reads, sequence_to_run, with_writes_settled
from checkmate.cost import OpProfile
from checkmate_torch.emit import Watch, emit_unbroken
from checkmate_torch.private import GradAOTOutput, PlainAOTInput, TangentAOTInput
from checkmate_torch.storages import allocated_bytes
from checkmate_torch.traced_graph import TracedGraph
from checkmate_torch.tracing import trace_unbroken
from checkmate_torch.updates import ParameterUpdate, Updates

__all__ = ["WholeStep", "emit_step", "renamed", "whole_step"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeStep:
    """A training step in one graph.

    Attributes:
        traced: the step, with each update as early as is sound.
        plain: the ops of ``traced.graph`` in the order of plain PyTorch: all updates at the end.
        writes: op of ``traced.graph`` → the tensor of the parameter that it overwrites, alone in a tuple.
        parameters: index of an argument → the parameter that it must be, because the graph updates that one.
    """

    traced: TracedGraph
    plain: tuple[int, ...]
    writes: Mapping[int, tuple[int]]
    parameters: Mapping[int, nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Due:
    """An update to append, with the nodes of its parameter and gradient."""

    update: ParameterUpdate
    parameter: Node
    gradient: Node


def whole_step(
    joint: GraphModule,
    *,
    parameters: Mapping[int, nn.Parameter],
    n_forward_outputs: int,
    updates: Updates,
    price: Callable[[DFGraph, Sequence[Node | None]], DFGraph],
    reserve: int = 0,
    name: str = "",
) -> WholeStep:
    """Read a joint graph as a whole step. The joint graph is changed in place.

    Args:
        joint: as AOTAutograd hands it to a partitioner; its loss is the only output with a gradient.
        parameters: index of a forward input → the parameter that it is.
        n_forward_outputs: how many of its outputs are forward's.
        updates: of the optimizer; gradients of other parameters are not computed.
        price: gives a graph its costs and workspaces, from the nodes of its ops.
        reserve: bytes that the step holds besides.
        name: of the graph.

    Raises:
        UnsupportedModelError: if there is no scalar loss, or the graph holds something that can't be planned.
    """
    due = _gradients_only(joint, parameters, n_forward_outputs, updates)
    _make_tangent(joint)
    traced = trace_unbroken(
        joint,
        n_forward_outputs=n_forward_outputs,
        reserve=reserve,
        name=name,
    )
    traced = replace(traced, graph=price(traced.graph, traced.nodes))
    return _with_updates(traced, due, updates)


def renamed(step: WholeStep, graph: DFGraph) -> WholeStep:
    """The step with the names of another graph; an update is named after its parameter."""
    ops = list(graph.ops)
    for u, (t,) in step.writes.items():
        ops[u] = replace(ops[u], name=f"update of {graph.tensors[t].name}")
    return replace(step, traced=replace(step.traced, graph=replace(graph, ops=tuple(ops))))


def emit_step(step: WholeStep, schedule: Schedule, watch: Watch | None = None) -> GraphModule:
    """The graph that executes a valid schedule of ``step.traced.graph``; it returns the forward outputs.

    Computes in vain are left out if one of them reads a parameter after its update.

    Raises:
        RuntimeError: if another op does.
    """
    graph, sequence = step.traced.graph, schedule.sequence.tolist()
    if late_reads(graph, sequence, step.writes):
        schedule = Schedule.from_sequence(graph, sequence_to_run(graph, sequence, step.writes))
    return emit_unbroken(step.traced, schedule, watch)


def _gradients_only(
    joint: GraphModule, parameters: Mapping[int, nn.Parameter], n_forward_outputs: int, updates: Updates
) -> list[_Due]:
    """Make the graph return only gradients that the optimizer needs; the updates that read them."""
    output = joint.graph.output_node()
    returned, roles = list(cast("Sequence[Argument]", output.args[0])), list(output.meta["desc"])
    placeholders = {node.meta["desc"]: node for node in joint.graph.find_nodes(op="placeholder")}
    due: list[_Due] = []
    for node, role in zip(returned[n_forward_outputs:], roles[n_forward_outputs:], strict=True):
        if not isinstance(node, Node):
            continue
        if not isinstance(role, GradAOTOutput) or not isinstance(role.grad_of, PlainAOTInput):
            raise UnsupportedModelError(
                f"PyTorch computes the gradient of {role.expr()}, which is not an input as it was passed: "
                "inputs that share memory can't be planned in one step; use "
                "checkmate.torch.compile(model, budget)"
            )
        parameter = parameters.get(role.grad_of.idx)
        update = updates.of(parameter) if parameter is not None else None
        if update is not None:
            due.append(_Due(update=update, parameter=placeholders[role.grad_of], gradient=node))
    if not due:
        raise UnsupportedModelError(
            "the loss depends on no parameter that the optimizer holds: there is nothing to train"
        )
    output.args = ((*returned[:n_forward_outputs], *(d.gradient for d in due)),)
    output.meta["desc"] = [
        *roles[:n_forward_outputs],
        *(GradAOTOutput(d.parameter.meta["desc"]) for d in due),
    ]
    return due


def _make_tangent(joint: GraphModule) -> None:
    """Make the incoming gradient of the loss in the graph instead of passing it as an argument."""
    inputs = joint.graph.find_nodes(op="placeholder")
    tangents = [n for n in inputs if isinstance(n.meta["desc"], TangentAOTInput)]
    if len(tangents) != 1 or tangents[0].meta["val"].dim() != 0:
        shapes = ", ".join(str(tuple(n.meta["val"].shape)) for n in tangents)
        raise UnsupportedModelError(
            f"loss_fn must return one scalar tensor, but it returned tensors of the shapes {shapes}: reduce "
            "the loss with .mean() or .sum(), and pass has_aux=True if it returns (loss, anything else)"
        )
    shown = tangents[0].meta["val"]
    with joint.graph.inserting_before(tangents[0].next):
        one = joint.graph.call_function(
            torch.ops.aten.full.default, ([], 1.0), {"dtype": shown.dtype, "device": shown.device}
        )
    one.meta.update(val=shown, partitioner_tag="is_backward")
    tangents[0].replace_all_uses_with(one)
    joint.graph.erase_node(tangents[0])


def _with_updates(traced: TracedGraph, due: Sequence[_Due], updates: Updates) -> WholeStep:
    """Append the updates to a step that returns gradients, then move each as early as is sound."""
    graph, writer = traced.graph, _Writer(traced)
    scale = (writer.coefficient(updates, due),) if updates.max_norm is not None else ()
    profiles: dict[Hashable, OpProfile] = {}
    for d in due:
        if d.update.layout not in profiles:
            profiles[d.update.layout] = d.update.profile()
        writer.update(d, scale, profiles[d.update.layout])
    returned = {traced.tensor_of.get(n) for n in traced.forward_outputs if isinstance(n, Node)}
    gone = {traced.tensor_of[d.gradient] for d in due} - returned
    late = replace(
        graph,
        ops=tuple(writer.ops),
        tensors=tuple(writer.tensors),
        outputs=(*(t for t in graph.outputs if t not in gone), *writer.tokens),
    )
    settled, order = with_writes_settled(late, writer.writes, traced.in_sequence)
    return WholeStep(
        traced=replace(traced, graph=settled, nodes=tuple(writer.nodes[v] for v in order)),
        plain=tuple(np.argsort(order).tolist()),
        writes={order.index(u): t for u, t in writer.writes.items()},
        parameters={traced.primals.index(d.parameter): d.update.parameter for d in due},
    )


class _Writer:
    """Appends ops to a traced step, in its joint graph and in its DFGraph."""

    def __init__(self, traced: TracedGraph) -> None:
        self.joint, self.tensor_of = traced.joint.graph, dict(traced.tensor_of)
        self.timed = traced.graph.cost_unit == "s"
        self.ops, self.nodes = list(traced.graph.ops), list(traced.nodes)
        self.tensors = list(traced.graph.tensors)
        self.tokens: list[int] = []
        self.writes: dict[int, tuple[int]] = {}

    def coefficient(self, updates: Updates, due: Sequence[_Due]) -> Node:
        """Append the op that computes the factor of all gradients, which reads all of them."""
        gradients = [d.gradient for d in sorted(due, key=lambda d: d.update.place)]
        scalar = gradients[0].meta["val"].new_empty(())
        node = self._node(updates.coefficient, (gradients,), scalar)
        norms = len(gradients) * allocated_bytes(scalar)
        self.tensor_of[node] = self._op(node, gradients, size=allocated_bytes(scalar), workspace=2 * norms)
        return node

    def update(self, due: _Due, scale: tuple[Node, ...], profile: OpProfile) -> None:
        """Append the update of a parameter; its output, a tensor of no bytes, shows that it has run."""
        reads = (due.parameter, due.gradient, *scale)
        self.writes[len(self.ops)] = (self.tensor_of[due.parameter],)
        node = self._node(due.update, reads, None)
        seconds = profile.seconds if self.timed else 0.0
        self.tokens.append(self._op(node, reads, size=0, workspace=profile.workspace, cost=seconds))

    def _node(self, target: Callable[..., object], args: tuple[Argument, ...], shown: object) -> Node:
        with self.joint.inserting_before(self.joint.output_node()):
            node = self.joint.call_function(target, args)
        node.meta.update(val=shown, partitioner_tag="is_backward")
        return node

    def _op(self, node: Node, reads: Sequence[Node], *, size: int, workspace: int, cost: float = 0.0) -> int:
        made = len(self.tensors)
        self.tensors.append(Tensor(name=node.name, size=size))
        self.ops.append(
            Op(
                name=node.name,
                inputs=tuple(dict.fromkeys(self.tensor_of[n] for n in reads)),
                outputs=(made,),
                cost=cost,
                workspace=workspace,
                recomputable=False,
                backward=True,
            )
        )
        self.nodes.append(node)
        return made

"""From PyTorch's joint graph to the graph of a whole step: no boundary, and every parameter's update in it.

The loss is an op like any other, and its tangent, the number 1, is made in the graph. Each gradient is read
by an op that updates its parameter, as soon as no op can read the old value any more. Updates that need all
gradients, or the gradients of several calls, run after the graph: then an op keeps each gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from checkmate import DFGraph, Op, Schedule, Tensor, UnsupportedModelError, keep_all_peak
from checkmate.analysis import late_reads, sequence_to_run, with_writes_settled
from checkmate.cost import OpProfile
from checkmate_torch.ops.storages import allocated_bytes, storage_key, stretch_of
from checkmate_torch.optimizer.updates import Accumulation, ParameterUpdate, Updates
from checkmate_torch.private import GradAOTOutput, Joint, PlainAOTInput, TangentAOTInput
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["StepGraph", "join_loss", "renamed", "with_updates", "without_late_reads"]

_WORTH_IT = 0.99
"""Backward ops run once if that lowers the peak without recomputation to less than this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepGraph:
    """A whole training step in one graph.

    Attributes:
        traced: the step, with each update as early as is sound.
        plain: the ops of ``traced.graph`` in the order of plain PyTorch: all updates at the end.
        writes: op of ``traced.graph`` → a tuple of one, the tensor that it overwrites: the parameter's, or
            the output of an earlier update if another parameter in the same storage is updated before.
        names: op of ``traced.graph`` → what it does, such as ``"update"``, and the tensor of its parameter.
        held: bytes of gradients that parameters will hold throughout, but don't hold yet.
        workspace: bytes of the largest workspace of an update.
        parameters: index of an argument → the parameter that must be passed, because the graph updates it.
    """

    traced: TracedGraph
    plain: tuple[int, ...]
    writes: Mapping[int, tuple[int]]
    names: Mapping[int, tuple[str, int]]
    held: int
    workspace: int
    parameters: Mapping[int, nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Due:
    """An update to append, with the nodes of its parameter and gradient."""

    update: ParameterUpdate
    parameter: Node
    gradient: Node


def join_loss(joint: Joint, parameters: Mapping[int, nn.Parameter], updates: Updates) -> None:
    """Change a joint graph, in place: from its primals it computes the loss and the gradients for updates.

    The loss is its only output with a gradient; the loss's tangent, the number 1, is made in the graph.
    ``parameters``: index of a forward input → the parameter that it is.

    Raises:
        UnsupportedModelError: if there is no scalar loss, or the graph holds something that can't be planned.
    """
    _return_due_gradients(joint, parameters, updates)
    _make_tangent(joint.module)


def with_updates(
    traced: TracedGraph,
    parameters: Mapping[int, nn.Parameter],
    updates: Updates,
    profile: Callable[[ParameterUpdate], OpProfile],
) -> StepGraph:
    """Append the updates to a step that returns the gradients due, then move each as early as is sound.

    The step was joined with its loss and priced. ``parameters``: index of a forward input → the parameter
    that it is. ``profile`` gives seconds and workspace of an update, and is asked once for each layout.
    """
    due = _due(traced, parameters, updates)
    writer = _Writer(traced)
    writer.add(due, updates, profile)
    late = writer.graph(gradients={traced.tensor_of[d.gradient] for d in due})
    settled, order = _settled(late, writer.writes, traced.in_sequence)
    return StepGraph(
        traced=replace(
            traced,
            graph=settled,
            nodes=tuple(writer.nodes[v] for v in order),
            gradients=(*traced.gradients, *writer.kept),
            tensor_of={**traced.tensor_of, **{n: writer.tensor_of[n] for n in writer.kept}},
        ),
        plain=tuple(np.argsort(order).tolist()),
        writes={order.index(u): t for u, t in writer.writes.items()},
        names={order.index(u): name for u, name in writer.names.items()},
        held=writer.held,
        workspace=writer.workspace,
        parameters={traced.primals.index(d.parameter): d.update.parameter for d in due},
    )


def renamed(step: StepGraph, graph: DFGraph) -> StepGraph:
    """The step with the names of another graph; updates and kept gradients are named after parameters."""
    ops, tensors = list(graph.ops), list(graph.tensors)
    for v, (name, t) in step.names.items():
        name = f"{name} of {graph.tensors[t].name}"
        ops[v] = replace(ops[v], name=name)
        (made,) = ops[v].outputs[:1]
        tensors[made] = replace(tensors[made], name=name)
    graph = replace(graph, ops=tuple(ops), tensors=tuple(tensors))
    return replace(step, traced=replace(step.traced, graph=graph))


def without_late_reads(step: StepGraph, schedule: Schedule) -> Schedule:
    """A valid schedule, without runs that nothing reads if one of them reads a parameter after its update."""
    graph, sequence = step.traced.graph, schedule.sequence.tolist()
    if late_reads(graph, sequence, step.writes):
        return Schedule.from_sequence(graph, sequence_to_run(graph, sequence, step.writes))
    return schedule


def _return_due_gradients(joint: Joint, parameters: Mapping[int, nn.Parameter], updates: Updates) -> None:
    """Make a graph return only the gradients that an update reads."""
    output, n_forward = joint.module.graph.output_node(), joint.n_outputs
    returned, roles = list(cast("Sequence[Argument]", output.args[0])), list(output.meta["desc"])
    due: dict[GradAOTOutput, Argument] = {}
    updated: list[nn.Parameter] = []
    for node, role in zip(returned[n_forward:], roles[n_forward:], strict=True):
        if not isinstance(node, Node):
            continue
        if not isinstance(role, GradAOTOutput) or not isinstance(role.grad_of, PlainAOTInput):
            raise UnsupportedModelError(
                f"PyTorch computes the gradient of {role.expr()}, which is not an input as it was passed: "
                "inputs that share memory can't be planned in one step; use "
                "checkmate.torch.compile(model, budget)"
            )
        parameter = parameters.get(role.grad_of.idx)
        if parameter is not None and updates.of(parameter) is not None:
            due[role] = node
            updated.append(parameter)
    _refuse_overlaps(updated)
    if not due:
        raise UnsupportedModelError(
            "the loss depends on no parameter that the optimizer holds: there is nothing to train"
        )
    output.args = ((*returned[:n_forward], *due.values()),)
    output.meta["desc"] = [*roles[:n_forward], *due]


def _due(traced: TracedGraph, parameters: Mapping[int, nn.Parameter], updates: Updates) -> list[_Due]:
    """The update that reads each gradient of a graph, in their order."""
    roles = traced.joint.graph.output_node().meta["desc"][len(traced.forward_outputs) :]
    primals = {node.meta["desc"]: node for node in traced.primals}
    due = []
    for role, gradient in zip(roles, traced.gradients, strict=True):
        update = cast(ParameterUpdate, updates.of(parameters[role.grad_of.idx]))
        due.append(_Due(update=update, parameter=primals[role.grad_of], gradient=cast(Node, gradient)))
    return due


def _refuse_overlaps(parameters: Sequence[nn.Parameter]) -> None:
    """Raise if two parameters have numbers in common: the later update would read what the earlier wrote."""
    taken = sorted((storage_key(p), stretch_of(p).start, stretch_of(p).stop) for p in parameters)
    for (storage, _, stop), (other, start, _) in pairwise(taken):
        if storage == other and start < stop:
            raise UnsupportedModelError(
                "two parameters have numbers in memory in common, which both their updates would change: "
                "make them one parameter, as in a.weight = b.weight, or use "
                "checkmate.torch.compile(model, budget)"
            )


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


def _settled(
    graph: DFGraph, writes: Mapping[int, tuple[int]], in_sequence: Sequence[int]
) -> tuple[DFGraph, list[int]]:
    """As :func:`with_writes_settled`, but backward ops are never recomputed if that lowers the peak.

    Updates wait for the end of a chain of backward ops that may all run again, such as the sums of gradients
    along a residual stream. Where gradients are most of the memory, that costs more than such ops save.
    Workspaces don't count in this, so that a step has the same graph however it is priced.
    """
    ops = tuple(replace(op, recomputable=op.recomputable and not op.backward) for op in graph.ops)
    free, once = (with_writes_settled(each, writes, in_sequence) for each in (graph, replace(graph, ops=ops)))
    peak_free, peak_once = (
        keep_all_peak(replace(g, ops=tuple(replace(op, workspace=0) for op in g.ops)))
        for g, _ in (free, once)
    )
    return once if peak_once < _WORTH_IT * peak_free else free


def _after_the_graph(*_: object) -> None:
    """Do nothing: the updates run after the graph has returned, and are charged to this op, its last one."""


class _Writer:
    """Appends ops to a traced step, in its joint graph and in its DFGraph."""

    def __init__(self, traced: TracedGraph) -> None:
        self.traced, self.joint, self.tensor_of = traced, traced.joint.graph, dict(traced.tensor_of)
        self.timed = traced.graph.cost_unit == "s"
        self.ops, self.nodes = list(traced.graph.ops), list(traced.nodes)
        self.tensors = list(traced.graph.tensors)
        self.tokens: list[int] = []
        self.versions: dict[int, int] = {}
        self.writes: dict[int, tuple[int]] = {}
        self.names: dict[int, tuple[str, int]] = {}
        self.kept: list[Node] = []
        self.held = self.workspace = 0

    def add(
        self, due: Sequence[_Due], updates: Updates, profile: Callable[[ParameterUpdate], OpProfile]
    ) -> None:
        """Append the updates, or ops that keep the gradients for updates after the graph."""
        layouts = {d.update.layout: d.update for d in due}
        profiles = {layout: profile(update) for layout, update in layouts.items()}
        self.workspace = max(p.workspace for p in profiles.values())
        if updates.are_last:
            self.keep(due, updates, [profiles[d.update.layout] for d in due])
            return
        scale = (self.coefficient(updates, due),) if updates.max_norm is not None else ()
        for d in due:
            self.update(d, scale, profiles[d.update.layout])

    def graph(self, gradients: set[int]) -> DFGraph:
        """The graph with the appended ops; it returns a gradient only if the forward pass returns it too."""
        traced = self.traced
        returned = {traced.tensor_of.get(n) for n in traced.forward_outputs if isinstance(n, Node)}
        gone = gradients - returned
        return replace(
            traced.graph,
            ops=tuple(self.ops),
            tensors=tuple(self.tensors),
            outputs=(*(t for t in traced.graph.outputs if t not in gone), *self.tokens),
            fixed_size=traced.graph.fixed_size + self.held,
        )

    def coefficient(self, updates: Updates, due: Sequence[_Due]) -> Node:
        """Append the op that computes the factor of all gradients, which reads all of them."""
        gradients = [d.gradient for d in sorted(due, key=lambda d: d.update.place)]
        scalar = gradients[0].meta["val"].new_empty(())
        node = self._node(updates.coefficient, (gradients,), scalar)
        norms = len(gradients) * allocated_bytes(scalar)
        self.tensor_of[node] = self._op(
            node, self._tensors(gradients), size=allocated_bytes(scalar), workspace=2 * norms
        )
        return node

    def update(self, due: _Due, scale: tuple[Node, ...], profile: OpProfile) -> None:
        """Append the update of a parameter; its output, a tensor of no bytes, shows that it has run.

        The output is the next version of the parameter's storage. Where parameters share a storage, as in a
        recurrent network on a GPU, the next update overwrites that version.
        """
        parameter, others = self.tensor_of[due.parameter], (due.gradient, *scale)
        version = self.versions.get(parameter, parameter)
        self.writes[len(self.ops)] = (version,)
        self.names[len(self.ops)] = ("update", parameter)
        node = self._node(due.update, (due.parameter, *others), None)
        reads = (version, *self._tensors(others))
        seconds = profile.seconds if self.timed else 0.0
        made = self._op(node, reads, size=0, workspace=profile.workspace, cost=seconds)
        self.versions[parameter] = made
        self.tokens.append(made)

    def keep(self, due: Sequence[_Due], updates: Updates, profiles: Sequence[OpProfile]) -> None:
        """Append the ops that keep the gradients, and one that charges for the updates after the graph.

        A gradient kept by one call is a tensor of the graph. A sum over several calls is held throughout.
        """
        for d in due:
            like = torch.empty_like(d.parameter.meta["val"])
            size = allocated_bytes(like)
            self.names[len(self.ops)] = ("kept gradient", self.tensor_of[d.parameter])
            node = self._node(Accumulation(parameter=d.update.parameter), (d.gradient,), like)
            if updates.accumulate > 1:
                self.held += size if d.update.parameter.grad is None else 0
                size = 0
            self.tensor_of[node] = self._op(node, self._tensors((d.gradient,)), size=size, workspace=0)
            self.tokens.append(self.tensor_of[node])
            self.kept.append(node)
        seconds = sum(p.seconds for p in profiles) / updates.accumulate if self.timed else 0.0
        node = self._node(_after_the_graph, tuple(self.kept), None)
        kept = self._tensors(self.kept)
        self.tokens.append(self._op(node, kept, size=0, workspace=self.workspace, cost=seconds))

    def _node(self, target: Callable[..., object], args: tuple[Argument, ...], shown: object) -> Node:
        with self.joint.inserting_before(self.joint.output_node()):
            node = self.joint.call_function(target, args)
        node.meta.update(val=shown, partitioner_tag="is_backward")
        return node

    def _tensors(self, nodes: Sequence[Node]) -> list[int]:
        return [self.tensor_of[n] for n in nodes]

    def _op(self, node: Node, reads: Sequence[int], *, size: int, workspace: int, cost: float = 0.0) -> int:
        made = len(self.tensors)
        self.tensors.append(Tensor(name=node.name, size=size))
        self.ops.append(
            Op(
                name=node.name,
                inputs=tuple(dict.fromkeys(reads)),
                outputs=(made,),
                cost=cost,
                workspace=workspace,
                recomputable=False,
                backward=True,
            )
        )
        self.nodes.append(node)
        return made

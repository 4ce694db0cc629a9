"""Whose bytes are whose: memory at a moment = Σ over kinds, each tensor of the graph being of one kind.

inputs              parameters, buffers, the batch
forward             activations; outputs, which the caller holds; the loss, where it is computed outside
backward            gradients of parameters; gradients of activations, incoming ones included
always              what is reserved, and what the model holds besides: gradients so far, unused parameters
while an op runs    its workspace
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import nn
from torch.fx import Node

from checkmate import DFGraph, Timeline
from checkmate_torch.joint import Traced
from checkmate_torch.storages import allocated_bytes, storage_key

__all__ = ["Account", "Kind", "named", "owned_by"]


class Kind(StrEnum):
    """What a byte is held for."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    BATCH = "batch"
    ACTIVATIONS = "activations"
    OUTPUTS = "outputs"
    LOSS = "loss outside of the model"
    GRADIENTS = "gradients of parameters"
    ACTIVATION_GRADIENTS = "gradients of activations"
    EARLIER_GRADIENTS = "gradients so far"
    BUCKETS = "buckets of DDP"
    RANDOM_STATES = "random states"
    OPTIMIZER = "optimizer state"
    RESERVE = "reserve"
    WORKSPACE = "workspace of the op"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The kinds of a traced step's bytes.

    Attributes:
        kinds: of each tensor of the graph.
        fixed: bytes that are resident throughout beside the graph's tensors, by kind; together they are
            ``graph.fixed_size``.
    """

    kinds: tuple[Kind, ...] = ()
    fixed: Mapping[Kind, int] = field(default_factory=dict)

    @classmethod
    def of(cls, traced: Traced, inputs: Mapping[Node, Kind], fixed: Mapping[Kind, int]) -> Account:
        """The account of a traced step.

        Args:
            traced: the step.
            inputs: the kind of each primal; others are the batch.
            fixed: what is resident throughout, as far as it is known; the rest of ``graph.fixed_size`` is
                held to replay random numbers.
        """
        graph = traced.graph
        kinds = [Kind.ACTIVATION_GRADIENTS if op.backward else Kind.ACTIVATIONS for op in graph.ops]
        of_tensor = {t: kinds[v] for v, op in enumerate(graph.ops) for t in op.outputs}
        if traced.boundary is not None:
            *tangents, loss = graph.ops[traced.boundary].outputs
            of_tensor |= dict.fromkeys(tangents, Kind.ACTIVATION_GRADIENTS) | {loss: Kind.LOSS}
        returned = set(graph.outputs)
        for node in traced.forward_outputs:
            t = traced.tensor_of.get(node) if isinstance(node, Node) else None
            if t in returned:
                of_tensor[t] = Kind.OUTPUTS
        for node in traced.gradients:
            t = traced.tensor_of.get(node) if isinstance(node, Node) else None
            if t is not None:
                of_tensor[t] = Kind.GRADIENTS
        of_tensor |= dict.fromkeys(graph.inputs, Kind.BATCH)
        of_tensor |= {traced.tensor_of[n]: kind for n, kind in inputs.items() if n in traced.tensor_of}
        rest = graph.fixed_size - sum(fixed.values())
        return cls(
            kinds=tuple(of_tensor[t] for t in range(graph.n_tensors)),
            fixed={kind: size for kind, size in {**fixed, Kind.RANDOM_STATES: rest}.items() if size},
        )

    def at_peak(self, timeline: Timeline) -> dict[Kind, int]:
        """Bytes of each kind at the peak of a schedule, largest first; together ``timeline.peak``."""
        graph, op = timeline.graph, timeline.peak_op
        sizes = self.summed((t, graph.tensors[t].size) for t in self.held_at_peak(timeline))
        sizes[Kind.WORKSPACE] = graph.ops[op].workspace if op is not None else 0
        return dict(sorted(((k, n) for k, n in sizes.items() if n), key=lambda item: -item[1]))

    def held_at_peak(self, timeline: Timeline) -> list[int]:
        """The tensors held at the peak of a schedule; one of which there are two copies is there twice.

        While an op runs all of its outputs are allocated anew, even if an older copy is resident.
        """
        op = timeline.peak_op
        made = timeline.graph.ops[op].outputs if op is not None else ()
        return [*timeline.resident_at(max(timeline.peak_step, 0)), *made]

    def without_activations(self, graph: DFGraph) -> dict[Kind, int]:
        """Bytes of each kind that no schedule can free: inputs, gradients of parameters, what is fixed."""
        held = {*graph.inputs, *(t for t in graph.outputs if self.kinds[t] is Kind.GRADIENTS)}
        sizes = self.summed((t, graph.tensors[t].size) for t in held)
        return dict(sorted(((k, n) for k, n in sizes.items() if n), key=lambda item: -item[1]))

    def summed(self, tensors: Iterable[tuple[int, int]]) -> dict[Kind, int]:
        """Bytes of each kind, of tensors with their sizes and of all that is fixed."""
        sizes = dict(self.fixed)
        for t, size in tensors:
            sizes[self.kinds[t]] = sizes.get(self.kinds[t], 0) + size
        return sizes


def owned_by(module: nn.Module | None) -> dict[int, tuple[Kind, int]]:
    """Kind and bytes of every storage that a module holds: parameters, buffers, gradients so far."""
    if module is None:
        return {}
    parameters = list(module.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    owned: dict[int, tuple[Kind, int]] = {}
    for kind, tensors in (
        (Kind.PARAMETERS, parameters),
        (Kind.BUFFERS, module.buffers()),
        (Kind.EARLIER_GRADIENTS, gradients),
    ):
        for tensor in tensors:
            owned.setdefault(storage_key(tensor), (kind, allocated_bytes(tensor)))
    return owned


def named(traced: Traced, example_inputs: Sequence[object], module: nn.Module | None) -> DFGraph:
    """The graph of a traced step, in which inputs and their gradients have their names in the module.

    Args:
        traced: the step.
        example_inputs: what AOTAutograd was given.
        module: whose parameters and buffers are among them; other inputs are numbered.
    """
    owned = [*module.named_parameters(), *module.named_buffers()] if module is not None else []
    known = {storage_key(value): name for name, value in owned}
    n_known = len(known)
    labels: dict[Node, str] = {}
    of_role: dict[object, str] = {}
    for node in traced.primals:
        role = node.meta.get("desc")
        index = getattr(role, "idx", len(example_inputs))
        value = example_inputs[index] if index < len(example_inputs) else None
        if isinstance(value, torch.Tensor):
            key = storage_key(value)
            labels[node] = of_role[role] = known.setdefault(key, f"input {len(known) - n_known}")
    roles = traced.joint.graph.output_node().meta["desc"][len(traced.forward_outputs) :]
    for gradient, role in zip(traced.gradients, roles, strict=False):
        name = of_role.get(getattr(role, "grad_of", None))
        if isinstance(gradient, Node) and name is not None:
            labels.setdefault(gradient, f"gradient of {name}")
    tensors = list(traced.graph.tensors)
    for node, name in labels.items():
        if (t := traced.tensor_of.get(node)) is not None:
            tensors[t] = replace(tensors[t], name=name)
    return replace(traced.graph, tensors=tuple(tensors))

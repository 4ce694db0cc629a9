"""What the bytes and ops of a traced step are to the model: their kinds, and their names in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.fx import Node

from checkmate import DFGraph
from checkmate.report import Account, Kind
from checkmate_torch.joint import Traced
from checkmate_torch.storages import allocated_bytes, storage_key

__all__ = ["account_of", "module_of", "named", "owned_by"]

_ROOT = re.compile(r"^L\['\w+'\]\.?")
"""How Dynamo names the model itself."""


def account_of(traced: Traced, inputs: Mapping[Node, Kind], fixed: Mapping[Kind, int]) -> Account:
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
    return Account(
        kinds=tuple(of_tensor[t] for t in range(graph.n_tensors)),
        fixed={kind: size for kind, size in {**fixed, Kind.RANDOM_STATES: rest}.items() if size},
    )


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


def module_of(node: Node | None) -> str:
    """The path of the module that a traced node comes from, as far as PyTorch knows it; else empty."""
    meta = node.meta if node is not None else {}
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")  # the latter in backward
    return _ROOT.sub("", list(stack.values())[-1][0]) if stack else ""

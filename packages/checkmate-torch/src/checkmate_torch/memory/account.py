"""The account of a traced step: the kinds of its bytes, and the names of its tensors in the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn
from torch.fx import Node

from checkmate import DFGraph
from checkmate.report import Account, Kind
from checkmate_torch.costs.workspaces import library_bytes
from checkmate_torch.ops.storages import allocated_bytes, storage_key
from checkmate_torch.private import FakeTensor
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["ResidentBytes", "module_of", "named"]

_CPU = torch.device("cpu")
_ROOT = re.compile(r"^L\['\w+'\](\.forward\._model\(\))?\.?")
"""Dynamo's names for the model itself, the one through an enabled model's forward included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidentBytes:
    """The bytes that are resident when a step starts: of its module, and of the inputs of its graph.

    Attributes:
        inputs: the example inputs of the graph.
        owned: storage key → kind and bytes of each storage of the module: parameters, buffers, gradients.
        given: storage key → tensor, for each tensor among the example inputs.
        fixed: kind → bytes that the step holds throughout and that its graph does not show.
    """

    inputs: Sequence[object]
    owned: Mapping[int, tuple[Kind, int]]
    given: Mapping[int, torch.Tensor]
    fixed: Mapping[Kind, int]

    @classmethod
    def of(cls, module: nn.Module | None, inputs: Sequence[object], fixed: Mapping[Kind, int]) -> Self:
        """The resident bytes of a step of a module (None = unknown); ``fixed``: further bytes, by kind."""
        owned = _owned_by(module)
        given = {storage_key(x): x for x in inputs if isinstance(x, torch.Tensor)}
        device = next((x.device for x in given.values() if x.dim()), _CPU)
        besides = {**fixed, Kind.LIBRARIES: library_bytes(device)}
        further = [(kind, size) for key, (kind, size) in owned.items() if key not in given]
        for kind, size in [*further, *_replaced_in(module)]:
            besides[kind] = besides.get(kind, 0) + size
        return cls(inputs=inputs, owned=owned, given=given, fixed=besides)

    def with_further(self, kind: Kind, size: int) -> Self:
        """The same with further bytes of a kind."""
        return replace(self, fixed={**self.fixed, kind: self.fixed.get(kind, 0) + size})

    @property
    def size(self) -> int:
        """Bytes that the graph does not show."""
        return sum(self.fixed.values())

    @property
    def batch(self) -> list[torch.Tensor]:
        """The tensors among the example inputs that are no parameters and not owned by the module."""
        items = self.given.items()
        return [x for key, x in items if key not in self.owned and not isinstance(x, nn.Parameter)]

    @property
    def owned_bytes(self) -> int:
        """Bytes of the module: parameters, buffers, gradients so far."""
        return sum(size for _, size in self.owned.values())

    @property
    def trained(self) -> dict[int, int]:
        """Storage → bytes of the parameters among the example inputs that get a gradient."""
        return {
            key: allocated_bytes(x)
            for key, x in self.given.items()
            if isinstance(x, nn.Parameter) and x.requires_grad
        }

    def allocated(self) -> tuple[torch.device, int]:
        """The device of the step, and the bytes that the step has allocated there before it starts."""
        device = next((x.device for x in self.given.values() if x.dim()), _CPU)
        later = (Kind.RESERVE, Kind.OPTIMIZER, Kind.LIBRARIES, Kind.CUDA_GRAPH)
        besides = sum(size for kind, size in self.fixed.items() if kind not in later)
        real = (x for x in self.given.values() if not isinstance(x, FakeTensor))
        return device, besides + sum(map(allocated_bytes, real))

    def account(self, traced: TracedGraph) -> Account:
        """The account of the traced step."""
        kinds: dict[Node, Kind] = {}
        for node, value in _passed(traced, self.inputs):
            known = Kind.PARAMETERS if isinstance(value, nn.Parameter) else Kind.BATCH
            kinds[node] = self.owned.get(storage_key(value), (known, 0))[0]
        return _account(traced, kinds, self.fixed)


def _owned_by(module: nn.Module | None) -> dict[int, tuple[Kind, int]]:
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


def _replaced_in(module: nn.Module | None) -> Iterator[tuple[Kind, int]]:
    """Kind and bytes of the parameters that ``functional_call`` replaces, and of their gradients."""
    parameters: list[torch.Tensor] = [] if module is None else [*module.parameters()]
    for p in parameters:
        if not isinstance(p, nn.Parameter):
            yield Kind.PARAMETERS, allocated_bytes(p)
            yield Kind.EARLIER_GRADIENTS, allocated_bytes(p) if p.requires_grad else 0


def _account(traced: TracedGraph, inputs: Mapping[Node, Kind], fixed: Mapping[Kind, int]) -> Account:
    """The account of a traced step, from the kinds of its primals (others: batch) and known fixed bytes.

    The rest of ``graph.fixed_size`` is held to replay random numbers.
    """
    graph = traced.graph
    kinds = [Kind.ACTIVATION_GRADIENTS if op.backward else Kind.ACTIVATIONS for op in graph.ops]
    of_tensor = {t: kinds[v] for v, op in enumerate(graph.ops) for t in op.outputs}
    if traced.boundary is not None:
        *tangents, loss = graph.ops[traced.boundary].outputs
        of_tensor |= dict.fromkeys(tangents, Kind.ACTIVATION_GRADIENTS) | {loss: Kind.LOSS}
    returned = _tensors_of(traced, traced.forward_outputs) & set(graph.outputs)
    of_tensor |= dict.fromkeys(returned, Kind.OUTPUTS)
    of_tensor |= dict.fromkeys(_tensors_of(traced, traced.gradients), Kind.GRADIENTS)
    of_tensor |= dict.fromkeys(graph.inputs, Kind.BATCH)
    of_tensor |= {traced.tensor_of[n]: kind for n, kind in inputs.items() if n in traced.tensor_of}
    rest = graph.fixed_size - sum(fixed.values())
    return Account(
        kinds=tuple(of_tensor[t] for t in range(graph.n_tensors)),
        fixed={kind: size for kind, size in {**fixed, Kind.RANDOM_STATES: rest}.items() if size},
    )


def _passed(traced: TracedGraph, inputs: Sequence[object]) -> Iterator[tuple[Node, torch.Tensor]]:
    """Each primal whose example input is a tensor, with that tensor; AOTAutograd gives the input's index."""
    for node in traced.primals:
        index = getattr(node.meta.get("desc"), "idx", len(inputs))
        value = inputs[index] if index < len(inputs) else None
        if isinstance(value, torch.Tensor):
            yield node, value


def _tensors_of(traced: TracedGraph, values: Sequence[object]) -> set[int]:
    """The tensors of the DFGraph for some outputs of the joint graph."""
    nodes = (value for value in values if isinstance(value, Node))
    return {traced.tensor_of[node] for node in nodes if node in traced.tensor_of}


def named(traced: TracedGraph, example_inputs: Sequence[object], module: nn.Module | None) -> DFGraph:
    """The graph of a traced step, in which inputs and their gradients have their names in the module.

    The module owns parameters and buffers among the inputs that AOTAutograd got; others are numbered.
    """
    owned = [*module.named_parameters(), *module.named_buffers()] if module is not None else []
    known = {storage_key(value): name for name, value in owned}
    n_known = len(known)
    labels: dict[Node, str] = {}
    of_role: dict[object, str] = {}
    for node, value in _passed(traced, example_inputs):
        name = known.setdefault(storage_key(value), f"input {len(known) - n_known}")
        labels[node] = of_role[node.meta["desc"]] = name
    roles = traced.joint.graph.output_node().meta["desc"][len(traced.forward_outputs) :]
    for gradient, role in zip(traced.gradients, roles, strict=False):
        owner = of_role.get(getattr(role, "grad_of", None))
        if isinstance(gradient, Node) and owner is not None:
            labels.setdefault(gradient, f"gradient of {owner}")
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

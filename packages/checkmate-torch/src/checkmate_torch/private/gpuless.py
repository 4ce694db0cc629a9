"""CUDA tensors without a GPU: fake ones, autograd in Python, and autocast that does not ask for a device.

A CUDA build of PyTorch makes fake CUDA tensors on any machine. Its autograd engine does not run on them: it
asks the driver for streams. Here the nodes that forward recorded are called in the engine's order instead:
a node when all its readers have run, of several the one that was recorded last.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

__all__ = ["ENTER_AUTOCAST", "fakes_cuda", "without_gpu"]

ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast
"""A captured graph calls it with the type of a device at the start of ``torch.autocast``."""


def fakes_cuda() -> bool:
    """Whether this build of PyTorch can trace fake CUDA tensors."""
    return bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]


@contextmanager
def without_gpu(device: torch.device) -> Iterator[None]:
    """Within the block, code for CUDA can be traced without a GPU; with one, nothing changes.

    Args:
        device: of the fake tensors.
    """
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            if device.type == "cuda":
                stack.enter_context(patch.object(torch.autograd, "grad", _gradients))
            common = torch.cuda.amp.common
            stack.enter_context(patch.object(common, "amp_definitely_not_available", lambda: False))
            stack.enter_context(patch.object(torch.cuda, "is_bf16_supported", lambda *_: True))
        yield


def _gradients(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    **_: object,
) -> tuple[Tensor | None, ...]:
    """As :func:`torch.autograd.grad`; inputs that are not used have none, and hooks are not called."""
    made, wanted = _edges(outputs), _edges(inputs)
    tensors = [outputs] if isinstance(outputs, Tensor) else outputs
    given = (grad_outputs,) if isinstance(grad_outputs, Tensor) else grad_outputs or [None] * len(made)
    walk = _Walk([node for node, _ in made], [node for node, _ in wanted])
    for (node, index), tensor, gradient in zip(made, tensors, given, strict=True):
        walk.pass_on(node, index, torch.ones_like(tensor) if gradient is None else gradient)
    with torch.no_grad():
        walk.run()
    return tuple(walk.held[node].get(index) for node, index in wanted)


class _Walk:
    """The calls of the nodes between some roots and the nodes whose gradients are wanted.

    Attributes:
        held: gradients that a node got so far, by the index of its output.
    """

    def __init__(self, roots: Sequence[Node], wanted: Sequence[Node]) -> None:
        readers = _readers(roots)
        self.held: dict[Node, dict[int, Tensor]] = defaultdict(dict)
        self._wanted, self._needed = set(wanted), _ancestors(wanted, readers)
        self._due = Counter({node: sum(r in self._needed for r in readers[node]) for node in readers})
        self._ready: list[tuple[int, int, Node]] = []
        for node in dict.fromkeys(roots):
            self._queue(node)

    def pass_on(self, node: Node, index: int, gradient: Tensor | None) -> None:
        """Give a node a gradient of one of its outputs."""
        if gradient is not None:
            gradient = _fitted(gradient, node._input_metadata[index])
            before = self.held[node].get(index)
            self.held[node][index] = gradient if before is None else before + gradient

    def run(self) -> None:
        """Call the nodes."""
        while self._ready:
            *_rest, node = heapq.heappop(self._ready)
            gradients = dict(self.held[node])
            if node not in self._wanted:
                del self.held[node]
            torch.fx.traceback.set_grad_fn_seq_nr(node._sequence_nr())
            results = _called(node, gradients)
            torch.fx.traceback.reset_grad_fn_seq_nr()
            for (source, index), gradient in results:
                self.pass_on(source, index, gradient)
                self._due[source] -= 1
                self._queue(source)

    def _queue(self, node: Node) -> None:
        if node in self._needed and not self._due[node]:
            heapq.heappush(self._ready, (-node._sequence_nr(), id(node), node))


def _edges(tensors: Tensor | Sequence[Tensor]) -> list[tuple[Node, int]]:
    """The node and the index of its output that each tensor is."""
    edges = map(get_gradient_edge, [tensors] if isinstance(tensors, Tensor) else tensors)
    return [(edge.node, edge.output_nr) for edge in edges]


def _readers(roots: Iterable[Node]) -> dict[Node, list[Node]]:
    """Every node that gradients may reach from the roots → the nodes that pass it gradients."""
    readers: dict[Node, list[Node]] = {root: [] for root in roots}
    stack = list(readers)
    while stack:
        node = stack.pop()
        for source, _ in node.next_functions:
            if source is not None:
                if source not in readers:
                    readers[source] = []
                    stack.append(source)
                readers[source].append(node)
    return readers


def _ancestors(nodes: Iterable[Node], readers: dict[Node, list[Node]]) -> set[Node]:
    """The nodes from which gradients flow to some nodes."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        new = [reader for reader in readers.get(stack.pop(), ()) if reader not in found]
        found.update(new)
        stack += new
    return found


def _called(node: Any, gradients: dict[int, Tensor]) -> list[tuple[tuple[Node, int], Tensor | None]]:
    """The gradients that a node passes on, with the edges that it passes them along."""
    if not gradients:
        results: Any = [None] * len(node.next_functions)
    elif callable(node):
        results = node(*(gradients.get(k) for k in range(len(node._input_metadata))))
    else:
        return _called_in_python(node, gradients)
    results = results if isinstance(results, tuple | list) else (results,)
    return [pair for pair in zip(node.next_functions, results, strict=False) if pair[0][0] is not None]


def _called_in_python(
    node: Any, gradients: dict[int, Tensor]
) -> list[tuple[tuple[Node, int], Tensor | None]]:
    """As :func:`_called`, of an ``autograd.Function``: its arguments that are no tensors have no edges."""
    made = (gradients[k] if k in gradients else _zeros(each) for k, each in enumerate(node._input_metadata))
    results = node.apply(*made)
    results = results if isinstance(results, tuple) else (results,)
    wanted = [gradient for gradient, needed in zip(results, node.needs_input_grad, strict=False) if needed]
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    return list(zip(edges, wanted, strict=False))


def _zeros(like: Any) -> Tensor:
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def _fitted(gradient: Tensor, like: Any) -> Tensor:
    """A gradient in shape and dtype of the tensor that it belongs to."""
    if gradient.shape != tuple(like.shape):
        gradient = gradient.sum_to_size(like.shape)
    return gradient if gradient.dtype == like.dtype else gradient.to(like.dtype)

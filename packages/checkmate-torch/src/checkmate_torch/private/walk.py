"""The backward pass in the order of autograd's engine, walked in Python: for fake tensors without their GPU.

The engine asks the driver for streams. The walk calls the recorded nodes in its order, adds gradients in
place where the engine would, and drops each node, with the tensors that it saved, once it has run.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor

from checkmate_torch.private.gpuless import _called, _fitted

__all__ = ["run_backward", "walk"]

_OF_PYTHON: Any = torch._C._FunctionBase
"""A node of a function in Python: it lives as long as the node that passes it gradients."""


def run_backward(losses: list[Tensor]) -> None:
    """Run the backward pass of scalars, by autograd's engine where it can run.

    Args:
        losses: are detached, so that the walk can drop their nodes.
    """
    if torch.cuda.is_available() or not any(x.is_cuda for x in losses):
        torch.autograd.backward(losses)
    else:
        walk(losses)


def walk(losses: list[Tensor]) -> None:
    """Run the backward pass of scalars without autograd's engine; hooks of tensors are not called.

    Args:
        losses: as for :func:`run_backward`.
    """
    held: defaultdict[int, dict[int, Tensor]] = defaultdict(dict)
    owners: defaultdict[int, list[object]] = defaultdict(list)
    alive, due = _nodes([x.grad_fn for x in losses])
    ready = [(-x.grad_fn._sequence_nr(), id(x.grad_fn)) for x in losses if not due[id(x.grad_fn)]]  # type: ignore[union-attr]
    heapq.heapify(ready)
    values = [x.detach() for x in losses]  # the caller holds them throughout
    for x in losses:
        held[id(x.grad_fn)][x.output_nr] = torch.ones_like(x)
    losses[:] = []
    del x
    with torch.no_grad():
        while ready:
            key = heapq.heappop(ready)[1]
            node, gradients = alive.pop(key), held.pop(key, {})
            if hasattr(node, "variable"):
                _accumulate(node.variable, gradients.pop(0, None))
                continue
            results = _called(node, gradients)
            gradients.clear()
            owners.pop(key, None)
            for python in [id(x) for (x, _), _ in results if isinstance(x, _OF_PYTHON)]:
                owners[python].append(node)
            del node
            while results:
                (source, index), gradient = results.pop(0)
                to = id(source)
                if gradient is not None:
                    given = [_fitted(gradient, source._input_metadata[index])]
                    del gradient
                    before = held[to].pop(index, None)
                    held[to][index] = given.pop() if before is None else _sum([before, given.pop()])
                    del before
                due[to] -= 1
                if not due[to]:
                    heapq.heappush(ready, (-source._sequence_nr(), to))
                del source
    losses[:] = values


def _nodes(roots: list[Any]) -> tuple[dict[int, Any], Counter[int]]:
    """The nodes that gradients reach from the roots, and for each the number that it waits for."""
    alive, due, stack = {id(root): root for root in roots}, Counter[int](), roots
    while stack:
        for source, _ in stack.pop().next_functions:
            if source is not None:
                due[id(source)] += 1
                if id(source) not in alive:
                    alive[id(source)] = source
                    stack.append(source)
    return alive, due


def _accumulate(variable: Tensor, gradient: Tensor | None) -> None:
    """Add to the gradient of a leaf, or keep it as that."""
    if gradient is None:
        return
    if variable.grad is not None:
        variable.grad.add_(gradient)
    elif gradient.stride() == variable.stride() and gradient.untyped_storage().nbytes() == gradient.nbytes:
        variable.grad = gradient
    else:
        variable.grad = torch.empty_like(variable).copy_(gradient)


def _sum(pair: list[Tensor]) -> Tensor:
    """The sum of two gradients; in place of one that nothing else holds."""
    for k in (0, 1):
        other = pair[1 - k]
        if _is_sole(pair, k) and pair[k].shape == other.shape and pair[k].dtype == other.dtype:
            return pair[k].add_(other)
    return pair[0] + pair[1]


def _is_sole(pair: list[Tensor], k: int) -> bool:
    counted: Any = pair[k]
    storage = counted.untyped_storage()
    return (
        sys.getrefcount(counted) <= 3
        and counted._use_count() <= 1
        and torch._C._storage_Use_Count(storage._cdata) <= 2
        and storage.nbytes() == counted.nbytes
    )

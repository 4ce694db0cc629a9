"""Windows of a schedule: fusible ops that follow each other and read each other's results.

A compiler fuses element-wise functions, reductions, and norms with their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from checkmate import DFGraph
from checkmate_torch.ops.recompute_rules import Pure, is_random, may_run_twice
from checkmate_torch.private import OpOverload, tree_leaves
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["gathered"]

_FUNCTIONS = (
    *("_batch_norm_with_update_functional", "_fused_rms_norm", "_fused_rms_norm_backward"),
    *("_log_softmax", "_log_softmax_backward_data", "_native_batch_norm_legit"),
    *("_native_batch_norm_legit_functional", "_softmax", "_softmax_backward_data", "_to_copy", "amax"),
    *("amin", "arange", "constant_pad_nd", "full", "full_like", "hardswish", "hardswish_backward"),
    *("linalg_vector_norm", "mean", "native_batch_norm_backward", "native_group_norm"),
    *("native_group_norm_backward", "native_layer_norm", "native_layer_norm_backward", "new_zeros"),
    *("nll_loss_backward", "nll_loss_forward", "select_backward", "slice_backward", "sum", "var"),
    *("var_mean", "zeros", "zeros_like"),
)
"""Functions of PyTorch that its compiler fuses, besides those with the tag ``pointwise``."""


def gathered(traced: TracedGraph, sequence: Sequence[int]) -> list[tuple[int, ...]]:
    """Group the runs of a schedule, repeats included, into windows: one kernel may compute a window.

    A stretch is the runs between two ops that can't be fused. Its runs that read each other's results are a
    window. Windows of one stretch read nothing of each other, so that their order does not matter. An op that
    can't be fused is a window of its own.
    """
    graph = traced.graph
    fusible = [node is not None and _is_fusible(node) for node in traced.nodes]
    windows: list[tuple[int, ...]] = []
    stretch: list[_Window] = []

    def close() -> None:
        windows.extend(tuple(graph_op for _, graph_op in window.runs) for window in stretch)
        stretch.clear()

    for position, op in enumerate(sequence):
        if not fusible[op]:
            close()
            windows.append((op,))
            continue
        if any(window.touches(graph.ops[op].outputs) for window in stretch):
            close()  # the op replaces a copy that the stretch has read or made
        stretch[:] = _with(stretch, _Window.of(position, op, graph))
    close()
    return windows


@dataclass(frozen=True, slots=True)
class _Window:
    """A window that may still grow.

    Attributes:
        runs: positions in the schedule, ascending, and their ops.
        made: the tensors that they make.
        read: the tensors that they read.
    """

    runs: tuple[tuple[int, int], ...]
    made: frozenset[int]
    read: frozenset[int]

    @classmethod
    def of(cls, position: int, op: int, graph: DFGraph) -> _Window:
        return cls(((position, op),), frozenset(graph.ops[op].outputs), frozenset(graph.ops[op].inputs))

    def touches(self, tensors: Sequence[int]) -> bool:
        return not (self.made | self.read).isdisjoint(tensors)

    def __or__(self, other: _Window) -> _Window:
        return _Window(tuple(sorted(self.runs + other.runs)), self.made | other.made, self.read | other.read)


def _with(stretch: Sequence[_Window], new: _Window) -> list[_Window]:
    """Add a window to a stretch: it is merged with the windows that make what it reads."""
    apart = []
    for window in stretch:
        if window.made.isdisjoint(new.read):
            apart.append(window)
        else:
            new = window | new
    return sorted([*apart, new], key=lambda window: window.runs[0])


def _is_fusible(node: Node) -> bool:
    """Whether a kernel can compute this node together with others: tensors of known sizes on one device."""
    op = node.target
    known = isinstance(op, Pure) or (isinstance(op, OpOverload) and _is_fused(op))
    if not known or is_random(node) or not may_run_twice(node):
        return False
    shown = [leaf for n in (node, *node.all_input_nodes) for leaf in tree_leaves(n.meta.get("val"))]
    tensors = [leaf for leaf in shown if leaf is not None]
    return (
        len(tensors) > 0
        and all(isinstance(x, torch.Tensor) and _is_plain(x) for x in tensors)
        and len({x.device for x in tensors}) == 1
    )


def _is_fused(op: OpOverload) -> bool:
    name = op.overloadpacket.__name__
    return name != "copy" and (
        torch.Tag.pointwise in op.tags or (op.namespace == "aten" and name in _FUNCTIONS)
    )


def _is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is strided, real, not empty, and of a size that is known."""
    sizes = (*x.shape, *x.stride(), x.storage_offset())
    known = not any(isinstance(n, torch.SymInt) for n in sizes)
    return known and x.layout == torch.strided and not x.is_complex() and x.numel() > 0

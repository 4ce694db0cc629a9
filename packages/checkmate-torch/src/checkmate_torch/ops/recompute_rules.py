"""Which ops may be computed twice, decided from their schemas and tags.

An op may be recomputed iff a second run gives the same bits and changes nothing else. Random ops qualify
because the random state is saved at the first run and restored around each copy.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument, Target

from checkmate_torch.ops.device import counts_as_cuda
from checkmate_torch.ops.storages import shown_by
from checkmate_torch.private import FakeTensor, OpOverload, argument_names, is_mutable

__all__ = [
    "FIRST_STATISTIC",
    "HALVES",
    "Pure",
    "as_copy",
    "correct_norms",
    "forget_running_statistics",
    "is_batch_norm_training",
    "is_new_statistic",
    "is_random",
    "may_run_twice",
    "random_state_bytes",
    "rng_state_like",
    "shape_before_sum",
    "statistics_are_read",
    "storage_like",
    "takes_library_state",
    "writes",
]

FIRST_STATISTIC = 3
"""Outputs of a batch norm in training from this index on are new running statistics; copies have none."""


_KNOWN_NAMESPACES = frozenset({"aten", "checkmate_torch", "prims"})
"""Ops of other libraries run once: a second run might not be safe."""

_LIBRARY_STATE = frozenset({"workspace", "reserve", "reserveSpace"})
"""Names in PyTorch's schemas of the state that ops of oneDNN or cuDNN pass to their backward ops."""

_REDUCED_IN_PLACE = frozenset(
    {
        torch.ops.aten.mse_loss.default,
        torch.ops.aten.smooth_l1_loss.default,
        torch.ops.aten.soft_margin_loss.default,
        torch.ops.aten.binary_cross_entropy.default,
    }
)
"""Losses that write their mean, or sum, into the storage of the element-wise loss, at its first place."""

HALVES = (torch.bfloat16, torch.float16)
"""Number formats of half precision."""

_STATISTICS: Mapping[int, torch.dtype | None] = {1: torch.float32, 2: torch.float32}
_NORMS: Mapping[OpOverload, Mapping[int, torch.dtype | None]] = {
    torch.ops.aten.native_layer_norm.default: _STATISTICS,
    torch.ops.aten.native_group_norm.default: _STATISTICS,
    torch.ops.aten._native_batch_norm_legit_functional.default: _STATISTICS,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _STATISTICS,
    torch.ops.aten.native_group_norm_backward.default: {0: None},
}
"""Op → output → its dtype on a CPU, where fake tensors show another; None = the dtype of the first input."""

_CUDA_STATE_BYTES = 16
"""Seed and offset of the Philox generator."""


class Pure:
    """A function of our own that gives the same bits each time and changes nothing else."""

    def __call__(self, *args: object) -> object:
        """The results."""
        raise NotImplementedError


def may_run_twice(node: Node) -> bool:
    """Whether another run of this node, with the random state replayed, is safe."""
    op = node.target
    if isinstance(op, Pure):
        return True
    if not isinstance(op, OpOverload):
        return False
    return op.namespace in _KNOWN_NAMESPACES and not writes(node)


def is_random(node: Node) -> bool:
    """Whether the node draws from the global random number generator."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    names = argument_names(op)
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    p = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(p != 0.0)


def rng_state_like(node: Node) -> torch.Tensor:
    """A fake tensor in the shape of the random state that a replay of this node needs."""
    shown = [value for value in shown_by(node, *node.all_input_nodes) if isinstance(value, FakeTensor)]
    device = next((value.device for value in shown if value.device.type == "cuda"), shown[0].device)
    with shown[0].fake_mode:
        return torch.empty(random_state_bytes(device), dtype=torch.uint8)


def random_state_bytes(device: torch.device) -> int:
    """Bytes of the state of a device's random number generator, which is held in the CPU's memory."""
    return _CUDA_STATE_BYTES if counts_as_cuda(device) else torch.default_generator.get_state().nbytes


def is_batch_norm_training(node: Node) -> bool:
    """Whether the node is a batch norm that updates running statistics (which a copy must not do)."""
    return node.target is torch.ops.aten._native_batch_norm_legit_functional.default and node.args[5] is True


def is_new_statistic(node: Node) -> bool:
    """Whether the node picks new running statistics from a batch norm in training."""
    return (
        node.target is operator.getitem
        and is_batch_norm_training(cast(Node, node.args[0]))
        and cast(int, node.args[1]) >= FIRST_STATISTIC
    )


def storage_like(node: Node) -> torch.Tensor | None:
    """A fake tensor with as large a storage as an op really makes; None if the op's fake output shows it.

    Some losses return a single number in a storage as large as their operand. A functional copy into a view
    first clones the storage of the view.
    """
    operands, value = shown_by(*node.all_input_nodes), node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return None
    if not value.dim() and (shape := shape_before_sum(node.target, operands)) is not None:
        return value.new_empty(shape)
    if node.target is torch.ops.aten.copy.default:
        expanded = any(n > 1 and step == 0 for n, step in zip(value.shape, operands[0].stride(), strict=True))
        return None if expanded else operands[0]
    return None


def shape_before_sum(op: object, operands: Sequence[torch.Tensor]) -> torch.Size | None:
    """The shape of the storage in which an op leaves the single number of a loss; None for other ops."""
    if op not in _REDUCED_IN_PLACE:
        return None
    return torch.broadcast_shapes(*(x.shape for x in operands))  # type: ignore[no-untyped-call,no-any-return]


def correct_norms(joint: GraphModule) -> None:
    """Correct the dtypes of norms on a CPU in mixed precision, which PyTorch's fake tensors show wrongly.

    Autocast leaves operands in half precision and parameters in single precision. Then mean and deviation are
    in single precision, and the gradient of a group norm's operand is in half precision.
    """
    for target, types in _NORMS.items():
        for node in joint.graph.find_nodes(op="call_function", target=target):
            first, *others = shown_by(*node.all_input_nodes)
            mixed = first.dtype in HALVES and any(x.dtype == torch.float32 for x in others)
            if mixed and first.device.type == "cpu":
                results = enumerate(node.meta["val"])
                _show(node, tuple(x.to(types[k] or first.dtype) if k in types else x for k, x in results))


def _show(node: Node, value: Any) -> None:
    """Set the fake value of a node, of nodes that pick its results, and of detached views of these."""
    node.meta["val"] = value
    for reader in node.users:
        if reader.target is operator.getitem:
            _show(reader, value[reader.args[1]])
        elif reader.target is torch.ops.aten.detach.default:
            _show(reader, value.detach())


def forget_running_statistics(joint: GraphModule) -> None:
    """Remove the running statistics from training-mode batch-norm backward nodes, which never read them."""
    target = torch.ops.aten.native_batch_norm_backward.default
    for node in joint.graph.find_nodes(op="call_function", target=target):
        grad, x, weight, _mean, _var, *rest = node.args
        if rest[2] is True:
            node.args = (grad, x, weight, None, None, *rest)


def statistics_are_read(node: Node) -> bool:
    """Whether an op reads the new running statistics of a batch norm in training."""
    return is_batch_norm_training(node) and any(
        reader.op != "output"
        for item in node.users
        if item.target is operator.getitem and cast(int, item.args[1]) >= FIRST_STATISTIC
        for reader in item.users
    )


def takes_library_state(node: Node) -> bool:
    """Whether an argument holds a library's private state: with a made-up one, the op may crash."""
    op = node.target
    return isinstance(op, OpOverload) and not _LIBRARY_STATE.isdisjoint(argument_names(op))


def writes(node: Node) -> bool:
    """Whether the node overwrites one of its arguments."""
    return isinstance(node.target, OpOverload) and is_mutable(node.target)


def as_copy(node: Node) -> tuple[Target, tuple[Argument, ...]]:
    """Function and arguments of a second run: a batch norm leaves the running statistics alone."""
    if is_batch_norm_training(node):
        x, weight, bias, _mean, _var, *rest = node.args
        return torch.ops.aten._native_batch_norm_legit.no_stats, (x, weight, bias, *rest)
    return node.target, node.args

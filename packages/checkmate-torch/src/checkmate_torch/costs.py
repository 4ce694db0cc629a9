"""What each op costs on this device: each distinct (function, shapes, strides, dtypes) is timed once.

The joint graph holds fake tensors; the op is run on real ones of the same layout. Floats are random, integers
and booleans zero, so that indices stay in range.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from checkmate_torch.allocations import ProfilerBusyError
from checkmate_torch.profile import OpProfile, profile_op
from checkmate_torch.safety import may_run_twice, takes_library_state

__all__ = ["profile_node"]

_log = logging.getLogger(__name__)
_cache: dict[str, OpProfile] = {}
_BYTES_PER_SECOND = 1e10
"""Stands in for the memory bandwidth where an op can't be run on made-up inputs."""


def profile_node(node: Node) -> OpProfile:
    """Seconds and workspace bytes of a node's function, on the device of its tensors; cached.

    An op that may run only once, or that can't run on made-up inputs, is charged by the bytes that it
    touches, with no workspace.

    Raises:
        ProfilerBusyError: inside of a profiler or a memory meter.
    """
    args = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    key = repr((str(node.target), torch.get_num_threads(), tree_map(_layout, args)))
    if key not in _cache:
        _cache[key] = _measure(node, args)
    return _cache[key]


def _measure(node: Node, args: object) -> OpProfile:
    tensors = [v for v in tree_leaves((args, node.meta.get("val"))) if isinstance(v, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    if not may_run_twice(node) or takes_library_state(node):
        return _by_bytes(tensors)
    try:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            real_args, real_kwargs = tree_map(_real, args)
            return profile_op(partial(_as_function(node), *real_args, **real_kwargs), device)
    except ProfilerBusyError as error:
        raise ProfilerBusyError(
            "a new plan times its ops, which can't be done inside of a profiler or memory meter: "
            "run one step of the compiled model before measuring it"
        ) from error
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        _log.info("%s can't be profiled, charging its bytes: %s", node.target, error)
        return _by_bytes(tensors)


def _by_bytes(tensors: Sequence[torch.Tensor]) -> OpProfile:
    size = sum(v.untyped_storage().nbytes() for v in tensors)
    return OpProfile(seconds=size / _BYTES_PER_SECOND, workspace=0)


def _as_function(node: Node) -> Callable[..., object]:
    if not callable(node.target):
        raise TypeError(f"{node.target!r} is no function")
    return node.target


def _layout(value: object) -> object:
    """What of an argument decides the cost."""
    if isinstance(value, torch.Tensor):
        return (tuple(map(int, value.shape)), tuple(map(int, value.stride())), value.dtype, value.device.type)
    return value


def _real(value: object) -> object:
    """A real tensor in the layout of a fake one; anything else as it is."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if value.numel() else 0
    flat = torch.empty(extent, dtype=value.dtype, device=value.device)
    filled = flat.normal_() if value.dtype.is_floating_point else flat.zero_()
    return filled.as_strided(shape, stride)

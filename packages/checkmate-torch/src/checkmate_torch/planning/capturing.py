"""Whether a whole step can be one CUDA graph, and the bytes that a graph takes beside the step's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.fx import Node
from torch.optim import Optimizer

from checkmate_torch.memory.live_bytes import LiveBytes
from checkmate_torch.ops.capturable import Capturable, Obstacle, obstacles_in
from checkmate_torch.ops.recompute_rules import is_random
from checkmate_torch.ops.storages import allocated_bytes
from checkmate_torch.optimizer.host_reads import tensors_read_on_host
from checkmate_torch.optimizer.meta_step import on_meta
from checkmate_torch.optimizer.separable import step_alone
from checkmate_torch.optimizer.updates import Updates
from checkmate_torch.private import unfaked
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["bytes_beside_graph", "capturable_step"]

_GENERATOR_BYTES = 1024
"""Seed and offset of a random generator on a GPU, which a graph reads there: a block each."""


def capturable_step(traced: TracedGraph, on_host: Iterable[Obstacle], updates: Updates) -> Capturable:
    """Whether a step with the updates of an optimizer can be one CUDA graph on the device traced for.

    ``on_host``: calls that put tensors on the CPU.
    """
    settings = {
        "accumulate": (updates.accumulate > 1, "adds to gradients that the first of several calls makes"),
        "scaler": (updates.scaler is not None, "reads on the host whether the gradients are finite"),
    }
    refused = [Obstacle(op=name, why=why) for name, (given, why) in settings.items() if given]
    return Capturable(obstacles=(*obstacles_in(traced.joint), *on_host, *refused, *_of_optimizer(updates)))


def bytes_beside_graph(traced: TracedGraph, batch: Iterable[Tensor]) -> int:
    """Bytes of the copies in which a graph finds its batch, of the results' copies, and of generators."""
    results = (n.meta["val"] for n in traced.returned if isinstance(n, Node) and n not in traced.new_values)
    copies = [*batch, *(x for x in results if isinstance(x, Tensor))]
    n_random = sum(node is not None and is_random(node) for node in traced.nodes)
    return sum(map(allocated_bytes, copies)) + _GENERATOR_BYTES * n_random


def _of_optimizer(updates: Updates) -> list[Obstacle]:
    """That the optimizer counts its steps on the host, or reads tensors there, if it does."""
    optimizer = updates.optimizer
    why = _why_counts(optimizer) or _why_reads(optimizer)
    return [Obstacle(op=type(optimizer).__name__, why=why)] if why else []


def _why_counts(optimizer: Optimizer) -> str:
    if all("capturable" in group for group in optimizer.param_groups):
        able = all(group["capturable"] for group in optimizer.param_groups)
        return "" if able else "counts its steps on the host: make it with capturable=True"
    with unfaked():
        twin = on_meta(optimizer)
        with LiveBytes(reads_ones=True):
            step_alone(twin)
    states = (state for state in twin.state.values() if isinstance(state, Mapping))
    if any(map(_is_on_host, (x for state in states for x in state.values()))):
        return "keeps numbers of its state on the host, and has no setting capturable"
    return ""


def _why_reads(optimizer: Optimizer) -> str:
    names = tensors_read_on_host(optimizer)
    if names is None:
        return ""
    if not names:
        return "reads numbers of tensors on the host"
    fused = " with fused=True, or" if "fused" in optimizer.param_groups[0] else ""
    return f"reads {' and '.join(names)}, a tensor on the GPU, on the host: make it{fused} with a number"


def _is_on_host(value: object) -> bool:
    return not value.is_meta if isinstance(value, Tensor) else type(value) in (int, float)

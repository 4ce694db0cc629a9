"""Which ops a CUDA graph can't hold, decided from schemas, tags and devices: no GPU is needed.

A CUDA graph repeats kernels with the arguments and addresses that they had when it was captured. Code on the
host runs only then. So an op forbids it if it reads a number on the host, copies from the host's pageable
memory, runs on the CPU, or has sizes that depend on data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from checkmate_torch.ops.device import cpu_represents_gpu, current_target
from checkmate_torch.ops.storages import shown_by
from checkmate_torch.private import OpOverload

__all__ = ["Capturable", "Obstacle", "moves_to_host", "obstacles_in"]

_ON_HOST = "reads numbers on the host"
_BY_NAME = {
    "aten::_linalg_svd": _ON_HOST,
    "aten::linalg_eig": _ON_HOST,
    "aten::_ctc_loss": "reads the lengths on the host",
    "checkmate_torch::bernoulli": "reads a probability that changes from step to step on the host",
    "checkmate_torch::dropout": "reads a probability that changes from step to step on the host",
    "checkmate_torch::dropout_backward": "reads a probability that changes from step to step on the host",
    "checkmate_torch::recurrent": "runs autograd of its own inside, which was not tried in a graph",
    "checkmate_torch::recurrent_backward": "runs autograd of its own inside, which was not tried in a graph",
}
_BY_TAG = {
    torch.Tag.data_dependent_output: _ON_HOST,
    torch.Tag.dynamic_output_shape: "makes a tensor whose sizes depend on data",
}
_INDEXING = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index_put"})
_GROUPED = frozenset({"aten::_grouped_mm", "aten::_scaled_grouped_mm"})
_GROUPED_FROM = (10, 0)
_TO_HOST = frozenset({"cpu", "numpy", "tolist", "pin_memory"})
_TORCH = tuple(map(str, torch.__path__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What forbids a CUDA graph.

    Attributes:
        op: name of the op, or of the setting.
        why: what it does.
        place: file and line of the user's code; empty if it is unknown.
    """

    op: str
    why: str
    place: str = ""

    def __str__(self) -> str:
        """One line."""
        return f"{self.op} {self.why}" + (f" ({self.place})" if self.place else "")


_ON_CPU = Obstacle(op="the step", why="runs on a CPU: put the model on a GPU, or trace it for one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capturable:
    """Whether a step can be captured as one CUDA graph; true if nothing forbids it.

    Attributes:
        obstacles: what forbids it.
    """

    obstacles: tuple[Obstacle, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether the step runs on a GPU at all."""
        return _ON_CPU not in self.obstacles

    def __bool__(self) -> bool:
        """Whether nothing forbids it."""
        return not self.obstacles

    def __str__(self) -> str:
        """One sentence."""
        if not self.obstacles:
            return "the step can be captured as one CUDA graph"
        return f"the step can't be captured as one CUDA graph: {'; '.join(map(str, self.obstacles))}"


def obstacles_in(joint: GraphModule) -> tuple[Obstacle, ...]:
    """The ops of a joint graph that forbid capture on the device that it is traced for, each place once."""
    if not _is_for_gpu(joint):
        return (_ON_CPU,)
    found: dict[Obstacle, None] = {}
    for node in joint.graph.nodes:
        if (why := _why(node, joint)) is not None:
            name = _name(node.target) if isinstance(node.target, OpOverload) else node.name
            found[Obstacle(op=name, why=why, place=_place(node))] = None
    return tuple(found)


def moves_to_host(gm: GraphModule) -> tuple[Obstacle, ...]:
    """The calls of captured code that put a tensor on the CPU.

    On a machine without the GPU that is planned for, they leave no op behind. There, a device that is no
    string may be that of a tensor, and is not counted.
    """
    found: dict[Obstacle, None] = {}
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            method = str(node.target) if node.op == "call_method" else ""
            names = [x for x in (*node.args, *node.kwargs.values()) if isinstance(x, str)]
            if method in _TO_HOST or (node.op.startswith("call") and "cpu" in names):
                why = "puts a tensor on the CPU, or makes it there"
                found[Obstacle(op=node.name, why=why, place=_place(node))] = None
    return tuple(found)


def _is_for_gpu(joint: GraphModule) -> bool:
    values = (node.meta.get("val") for node in joint.graph.find_nodes(op="placeholder"))
    return cpu_represents_gpu() or any(isinstance(x, Tensor) and x.is_cuda for x in values)


def _why(node: Node, joint: GraphModule) -> str | None:
    """Why a node forbids capture; None if it does not."""
    if any(isinstance(n, torch.SymInt) for x in shown_by(node) for n in x.shape):
        return "has a size that may change from step to step"
    if node.op == "get_attr":
        constant = getattr(joint, str(node.target), None)
        host = isinstance(constant, Tensor) and constant.device.type == "cpu" and constant.dim() > 0
        return "copies Python numbers from the host: make the tensor once, as a buffer" if host else None
    return _why_op(node, node.target) if isinstance(node.target, OpOverload) else None


def _why_op(node: Node, op: OpOverload) -> str | None:
    name = _name(op)
    if name in _GROUPED and _capability(node) < _GROUPED_FROM:
        return "reads its offsets on the host below compute capability 10.0"
    if name in _INDEXING:
        masked = any(x.dtype in (torch.bool, torch.uint8) for x in shown_by(*_indices(node)))
        return "counts the entries of a mask on the host: use torch.where" if masked else _on_cpu(node)
    known = _BY_NAME.get(name) or next((why for tag, why in _BY_TAG.items() if tag in op.tags), None)
    return known or _on_cpu(node)


def _name(op: OpOverload) -> str:
    return f"{op.namespace}::{op.overloadpacket.__name__}"


def _on_cpu(node: Node) -> str | None:
    """Whether an op has tensors on the CPU; a single number of an operand is an argument of the kernel."""
    on_host = [x for x in shown_by(*node.all_input_nodes) if x.device.type == "cpu" and x.dim()]
    made = [x for x in shown_by(node) if x.device.type == "cpu"]
    return "has tensors on the CPU" if not cpu_represents_gpu() and (on_host or made) else None


def _indices(node: Node) -> list[Node]:
    given = node.args[1] if len(node.args) > 1 else ()
    return [x for x in given if isinstance(x, Node)] if isinstance(given, list | tuple) else []


def _capability(node: Node) -> tuple[int, int]:
    target = current_target()
    if target is not None and target.capability is not None:
        return target.capability
    device = next((x.device for x in shown_by(node, *node.all_input_nodes) if x.is_cuda), None)
    return (0, 0) if device is None else torch.cuda.get_device_capability(device)


def _place(node: Node) -> str:
    """File and line of the innermost call that is not in PyTorch."""
    return next(_places(str(node.meta.get("stack_trace") or "")), "")


def _places(stack: str) -> Iterator[str]:
    for line in reversed(stack.splitlines()):
        if line.strip().startswith('File "'):
            path, _, rest = line.strip().removeprefix('File "').partition('", line ')
            if not path.startswith(_TORCH):
                yield f"{Path(path).name}:{rest.partition(',')[0]}"

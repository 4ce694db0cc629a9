"""The bytes of a loss that is computed outside of the model: it is one op between forward and backward pass.

    outputs of the model ↦ loss ↦ gradients of the outputs

The model tells the bytes of outputs and gradients. The loss needs further bytes, known only if it is traced.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch.fx import GraphModule, Node

from checkmate_torch.ops.storages import CUDA_GRANULE, tensors_in
from checkmate_torch.private import tree_leaves

__all__ = ["LossBytes", "loss_bytes", "returns_loss"]

_SCALARS = 4 * CUDA_GRANULE
"""Bytes of the loss itself and other scalars, each of which takes a block of its own on CUDA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBytes:
    """The bytes of a loss, besides the model's outputs and their gradients.

    Attributes:
        kept: bytes held from the loss to the end of the step.
        workspace: further bytes held while the loss and its backward pass run.
        outputs: bytes of the outputs with which both were found; both scale with them. 0 = they don't scale.
    """

    kept: int
    workspace: int
    outputs: int = 0


def loss_bytes(declared: int | LossBytes | None, outputs: int) -> LossBytes:
    """The bytes that a loss is charged with.

    The rule of thumb, twice the outputs throughout and three times while the loss runs, covers the usual
    losses, of which ``((y - t) ** 2).mean()`` needs most.

    Args:
        declared: as found by tracing; or the bytes that the loss keeps: 0 = the model computes the loss
            itself, and nothing is charged; None = unknown.
        outputs: bytes of the outputs that get a gradient.
    """
    if isinstance(declared, LossBytes):
        part = outputs / declared.outputs if declared.outputs else 1
        return LossBytes(
            kept=ceil(declared.kept * part) + _SCALARS, workspace=ceil(declared.workspace * part)
        )
    kept = 2 * outputs if declared is None else declared
    return LossBytes(kept=kept + _SCALARS, workspace=0 if declared == 0 else 3 * outputs)


def returns_loss(gm: GraphModule) -> bool:
    """Whether the first output of a captured graph that needs a gradient is a number: then it is the loss."""
    returned = (n for n in tree_leaves(gm.graph.output_node().args) if isinstance(n, Node))
    tensors = tensors_in([n.meta.get("example_value") for n in returned])
    return next((not x.dim() for x in tensors if x.requires_grad), False)

"""Images in the memory format that is the fastest for convolutions on a CPU: channels last, as in Inductor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

__all__ = ["with_channels_last"]

_CONVOLUTIONS = frozenset({torch.conv2d, torch.nn.functional.conv2d})


def with_channels_last(gm: GraphModule) -> GraphModule:
    """A captured graph whose convolutions of images on the CPU take their inputs with the channels last.

    Results of convolutions, and of most ops that read them, keep that format, so that few copies are made.
    """
    found = [
        node
        for node in gm.graph.nodes
        if node.op == "call_function" and node.target in _CONVOLUTIONS and _is_image(node.args[0])
    ]
    for node in found:
        image = node.args[0]
        with gm.graph.inserting_before(node):
            moved = gm.graph.call_method(
                "contiguous", (image,), {"memory_format": torch.channels_last}
            )
        moved.meta.update(image.meta)
        node.update_arg(0, moved)
    if found:
        gm.recompile()
    return gm


def _is_image(arg: object) -> bool:
    value = arg.meta.get("example_value") if isinstance(arg, Node) else None
    return isinstance(value, Tensor) and value.device.type == "cpu" and value.dim() == 4

"""The memory format of images in which a CPU convolves fastest: channels last, as Inductor has it too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from checkmate_torch.private import tree_map_only

__all__ = ["in_plain_format", "with_channels_last"]

_aten = torch.ops.aten
_FUNCTIONS = frozenset({torch.conv2d, torch.nn.functional.conv2d})
_OPS = frozenset({_aten.convolution.default, _aten.convolution_backward.default})


_RANDOM = frozenset(
    {
        *("alpha_dropout", "bernoulli", "bernoulli_", "dropout", "dropout_", "exponential_", "normal_"),
        *("rand_like", "randint_like", "randn_like", "rrelu", "rrelu_", "uniform_"),
    }
)
"""Functions that draw a number for each element, in the order of memory."""


def with_channels_last(gm: GraphModule) -> bool:
    """Let the convolutions of a captured graph on the CPU take images with the channels last, in place.

    Results of convolutions, and of most ops that read them, keep that format, so that few images are copied.
    A graph that draws random numbers for images stays as it is: the numbers would be of other elements.

    Returns:
        whether there are such convolutions. Images that have that format already stay as they are.
    """
    if any(_draws(node) for node in gm.graph.nodes):
        return False
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _FUNCTIONS]
    found = [node for node in found if node.args and _is_contiguous_image(node.args[0])]
    for node in found:
        image = node.args[0]
        with gm.graph.inserting_before(node):
            moved = gm.graph.call_method("contiguous", (image,), {"memory_format": torch.channels_last})
        moved.meta.update(image.meta)
        node.update_arg(0, moved)
    if found:
        gm.recompile()
    return bool(found)


def in_plain_format(nodes: Sequence[Node | None]) -> list[Node | None]:
    """The nodes of a step; convolutions as they are on images in the order that models give them."""
    scratch = Graph()

    def plain(node: Node) -> Node:
        twin = scratch.placeholder(node.name)
        twin.meta["val"] = _contiguous(node.meta.get("val"))
        return twin

    def of(node: Node) -> Node:
        args, kwargs = map_arg((node.args, node.kwargs), plain)
        twin = scratch.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
        twin.meta["val"] = _contiguous(node.meta["val"])
        return twin

    return [of(node) if node is not None and node.target in _OPS else node for node in nodes]


def _contiguous(value: object) -> object:
    return tree_map_only(Tensor, Tensor.contiguous, value)


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers for images, whose order depends on their format."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    shown = [n.meta.get("example_value") for n in (node, *node.all_input_nodes)]
    images = [x for x in shown if isinstance(x, Tensor) and x.dim() == 4]
    return name in _RANDOM and any(x.shape[1] != 1 and x.shape[2:].numel() != 1 for x in images)


def _is_contiguous_image(arg: object) -> bool:
    value = arg.meta.get("example_value") if isinstance(arg, Node) else None
    return (
        isinstance(value, Tensor)
        and value.device.type == "cpu"
        and value.dim() == 4
        and not value.is_contiguous(memory_format=torch.channels_last)
    )

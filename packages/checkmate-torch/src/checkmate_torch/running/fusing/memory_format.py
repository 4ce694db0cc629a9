"""Convolve on a CPU with channels last, the fastest memory format there; Inductor does so, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from checkmate_torch.private import tree_map_only

__all__ = ["in_plain_format", "undo", "with_channels_last"]

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
_STRIDED = frozenset({"as_strided", "as_strided_", "is_contiguous", "stride", "view", "view_as"})
"""Functions that depend on the order of memory."""
_RESHAPING = frozenset({"flatten", "ravel", "reshape", "reshape_as", "unflatten"})
"""Functions that return a view of a contiguous image, but a copy of any other image."""


def with_channels_last(gm: GraphModule) -> list[Node]:
    """Let the convolutions of a captured graph on the CPU take images with the channels last, in place.

    Results of convolutions, and of most ops that read them, keep that format, so that few images are copied.
    What the graph returns has the format that the model gives it. A graph is not changed if its results
    depend on the format (random numbers would go to other elements), or if its sizes may change.

    Returns:
        the nodes that were added. There is none for an image that has the format already.
    """
    graphs = [inner.graph for inner in gm.modules() if isinstance(inner, GraphModule)]
    if any(_changes_size(node) or _depends_on_format(node) for graph in graphs for node in graph.nodes):
        return []
    known = set(gm.graph.nodes)
    for node in [node for node in gm.graph.nodes if node.target in _FUNCTIONS and node.args]:
        node.update_arg(0, _formatted(node.args[0], torch.channels_last, before=node))
    if len(gm.graph.nodes) > len(known):
        end = gm.graph.output_node()
        end.args = map_arg(end.args, lambda node: _formatted(node, torch.contiguous_format, before=end))
        gm.recompile()
    return [node for node in gm.graph.nodes if node not in known]


def undo(gm: GraphModule, added: Sequence[Node]) -> None:
    """Remove the nodes that :func:`with_channels_last` has added."""
    for node in added:
        node.replace_all_uses_with(node.all_input_nodes[0])
        gm.graph.erase_node(node)
    gm.recompile()


def _formatted(value: Any, memory_format: torch.memory_format, *, before: Node) -> Any:
    """Convert a contiguous image, by a new node before ``before``; other values are returned unchanged."""
    if not _is_contiguous_image(value):
        return value
    with before.graph.inserting_before(before):
        moved = before.graph.call_method("contiguous", (value,), {"memory_format": memory_format})
    moved.meta.update(value.meta)
    return moved


def in_plain_format(nodes: Sequence[Node | None]) -> list[Node | None]:
    """The nodes of a step, each convolution replaced by one on contiguous images, as models give them."""
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


def _changes_size(node: Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


def _depends_on_format(node: Node) -> bool:
    """Whether the result of a node, or of what reads it, depends on the format of images."""
    name, read = _name(node), node.all_input_nodes
    if name in _RESHAPING:
        readers = [*node.users, *(reader for each in read for reader in each.users)]
        return any(map(_is_image, read)) and any(map(_may_write, readers))
    if name in _STRIDED:
        return any(map(_is_image, read))
    return name in _RANDOM and _draws(node) and any(map(_is_image, (node, *read)))


def _draws(node: Node) -> bool:
    """Whether a random function draws anything: dropout of nothing does not."""
    _, p, training, *_ = (*node.args, None, None, None)
    p, training = node.kwargs.get("p", p), node.kwargs.get("training", training)
    draws_nothing = training is False or (isinstance(p, int | float) and p == 0)
    return "dropout" not in _name(node) or not draws_nothing


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _may_write(node: Node) -> bool:
    """Whether a node may write to what it reads."""
    name, given = _name(node), (*node.args, *node.kwargs.values())
    return any(arg is True for arg in given) or (name.endswith("_") and not name.endswith("__"))


def _image(arg: object) -> Tensor | None:
    """The four-dimensional tensor of a node; None if the node has no such tensor."""
    value = arg.meta.get("example_value") if isinstance(arg, Node) else None
    return value if isinstance(value, Tensor) and value.dim() == 4 else None


def _is_image(arg: object) -> bool:
    """Whether a node's tensor is an image of several channels and several pixels."""
    x = _image(arg)
    return x is not None and x.shape[1] != 1 and x.shape[2:].numel() != 1


def _is_contiguous_image(arg: object) -> bool:
    x = _image(arg)
    channels_last = torch.channels_last
    return x is not None and x.device.type == "cpu" and not x.is_contiguous(memory_format=channels_last)

"""Gradients of gradients: a planned backward pass can't be differentiated, and says so in our words."""

from __future__ import annotations

from collections.abc import Callable

import torch

from checkmate import UnsupportedModelError
from checkmate_torch.private import tree_leaves

__all__ = ["refusing_double_backward"]


def refusing_double_backward(call: Callable[..., object]) -> Callable[..., object]:
    """The same call; its backward pass raises an error if it is to be differentiated.

    The error is an :class:`UnsupportedModelError`.
    """

    def run(*args: object) -> object:
        results = call(*args)
        outputs = (x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.grad_fn is not None)
        if (output := next(outputs, None)) is not None and output.grad_fn is not None:
            output.grad_fn.register_prehook(_refuse_if_differentiated)
        return results

    return run


def _refuse_if_differentiated(_: object) -> None:
    if torch.is_grad_enabled():
        raise UnsupportedModelError(
            "create_graph=True asks for the gradient of a gradient, but a planned backward pass can't be "
            "differentiated: for that step call disable(model), the .original of a compiled model, or the "
            "model that was given to torch.compile"
        )

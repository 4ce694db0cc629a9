"""Replace tensors, real or on ``meta``, and all tensors that a model holds, by fake ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from checkmate import UnsupportedModelError
from checkmate_torch.private import (
    FakeTensor,
    FakeTensorMode,
    fake_mode,
    fake_mode_of,
    note_values,
    tree_leaves,
    tree_map,
)

__all__ = ["arguments_of", "fake_like", "on_fakes", "twin_of"]


def arguments_of(example_inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Example inputs as positional and keyword arguments: a mapping has keywords, a sequence positions."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def on_fakes(
    model: nn.Module, example_inputs: object, device: torch.device | None = None
) -> tuple[FakeTensorMode, nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Make a model and its inputs fake: return the mode, the model's twin, positional and keyword arguments.

    Parameters and inputs may be real, fake, or on ``meta``. Without a device each tensor keeps its own.
    """
    args, kwargs = arguments_of(example_inputs)
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))]
    mode = fake_mode_of(tensors) or fake_mode()
    args, kwargs = tree_map(lambda x: fake_like(x, mode, device), (args, kwargs))
    return mode, twin_of(model, mode, device), args, kwargs


def twin_of(model: nn.Module, mode: FakeTensorMode, device: torch.device | None = None) -> nn.Module:
    """A copy of the model with fake tensors in the place of all that it holds; nothing is allocated.

    A model that is fake, and on the device if one is given, is its own twin.

    Raises:
        UnsupportedModelError: if the model can't be copied.
    """
    memo: dict[int, object] = {}
    if all(fake_like(x, mode, device) is x for x in (*model.parameters(), *model.buffers())):
        return model
    for module in model.modules():
        held = (*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values())
        for value in held:
            if isinstance(value, Tensor) and id(value) not in memo:
                memo[id(value)] = fake_like(value, mode, device)
    try:
        return copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"the model can't be copied to be traced on fake tensors: {error}. Build it under "
            "torch._subclasses.FakeTensorMode(): then it is traced as it is"
        ) from error


def fake_like(value: object, mode: FakeTensorMode, device: torch.device | None = None) -> object:
    """A fake tensor like ``value``, on ``device``; default its own device, or the CPU if that is ``meta``.

    Raises:
        UnsupportedModelError: if the tensor is on a GPU that is not here, and no device is given.
    """
    if not isinstance(value, Tensor):
        return value
    if device is None and value.is_cuda and not torch.cuda.is_available():
        raise UnsupportedModelError(
            "the model is on CUDA, and PyTorch finds no GPU here: say which one is meant, "
            "device='cuda:H100-80GB'"
        )
    if value.device.type != "meta" and device in (None, value.device):
        return value if isinstance(value, FakeTensor) else _noted(mode.from_tensor(value), value)
    with mode:
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device or "cpu")
    _noted(like, value)
    like = nn.Parameter(like) if isinstance(value, nn.Parameter) else like
    if value.is_leaf and value.grad is not None:
        like.grad = cast("Tensor", fake_like(value.grad, mode, device))
    return like.requires_grad_(value.requires_grad)


def _noted(like: Tensor, real: Tensor) -> Tensor:
    """The twin of a tensor, which knows the mask or the positions that it stands for."""
    if not real.is_floating_point() and real.dim() == 2:
        note_values(like, real)
    return like

"""The memory of the plain forward and backward pass, from the model's own code, run on fake tensors.

The code is not captured first: libraries take other branches while they are captured, with other tensors.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from checkmate import CheckmateError, UnsupportedModelError
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.capture.fake_twins import on_fakes
from checkmate_torch.capture.target_kernels import RunsKernelsOfTarget
from checkmate_torch.memory.live_bytes import Follower
from checkmate_torch.memory.plain_graph import EagerStep
from checkmate_torch.ops.device import current_target
from checkmate_torch.ops.storages import rounded, storages_of
from checkmate_torch.private import (
    OpOverload,
    storage_id,
    tree_leaves,
)

__all__ = ["plain_step"]

_log = logging.getLogger(__name__)
_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}
"""Ops by which code reads a number from a tensor."""


def plain_step(model: nn.Module, example_inputs: object, loss: Loss | None = None) -> EagerStep | None:
    """Follow forward and backward pass of a model, without memory and without real tensors.

    The model's output is dropped before the backward pass if there is a loss, as in
    ``loss = loss_of(model(x))``. A number that the code reads from a tensor is taken as 1, as if masks select
    everything.

    Args:
        model: is left as it was; its parameters may be real, fake, or on the device ``meta``.
        example_inputs: as :func:`checkmate_torch.trace` takes them.
        loss: from the model's output to a scalar; None = the model returns it.

    Returns:
        the moments of the step, in which parameters, gradients, buffers and inputs are counted. None if the
        code can't run in this way, e.g. because a size depends on data.

    Raises:
        UnsupportedModelError: if there is no scalar loss.
    """
    target = current_target()
    device = None if target is None else target.device
    mode, twin, args, kwargs = on_fakes(model, example_inputs, device)
    tensors = [x for x in tree_leaves(([*twin.parameters()], args, kwargs)) if isinstance(x, Tensor)]
    gradients = {x: x.grad for x in tensors if x.is_leaf}
    storages = storages_of([twin, args, kwargs]).values()
    held = {storage_id(x): rounded(x.nbytes(), x.device) for x in storages}
    try:
        with mode, torch.enable_grad(), _taken_as_real(), RunsKernelsOfTarget(), _Reader(held) as follower:
            output = twin(*args, **kwargs)
            found = output if loss is None else loss(output)
            del output
            _check_loss(found)
            torch.autograd.backward([found])
            return EagerStep(moments=follower.moments)
    except CheckmateError:
        raise
    except Exception as error:  # noqa: BLE001 - any op may lack a rule for fake tensors
        _log.debug("the model's own code can't be followed: %s", error, exc_info=True)
        return None
    finally:
        for x, gradient in gradients.items():
            x.grad = gradient


def _check_loss(found: object) -> None:
    if not isinstance(found, Tensor) or found.dim():
        shape = (
            f"a tensor of shape {tuple(found.shape)}"
            if isinstance(found, Tensor)
            else f"{type(found).__name__}"
        )
        raise UnsupportedModelError(
            f"the loss is {shape}, must be a scalar tensor: let the model's forward return it, or let the "
            "factory return (model, example_inputs, loss), with loss a function of the model's output"
        )


class _Reader(Follower):  # type: ignore[no-untyped-call]
    """Counts bytes; a number that is read from a fake tensor is 1."""

    def called(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """The result of an op."""
        try:
            return super().called(func, args, kwargs)
        except RuntimeError:
            if func not in _READS:
                raise
            if func is torch.ops.aten.equal.default or args[0].dtype == torch.bool:
                return True
            return 1.0 if args[0].is_floating_point() else 1


@contextmanager
def _taken_as_real() -> Iterator[None]:
    """Let transformers run on fake tensors the code that it runs on real ones, which builds fewer masks."""
    module: Any = sys.modules.get("transformers.utils.import_utils")
    asks = getattr(module, "is_fake_tensor", None)
    if asks is None:
        yield
        return
    module.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        module.is_fake_tensor = asks

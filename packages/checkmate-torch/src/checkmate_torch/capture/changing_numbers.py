"""Functions of PyTorch whose settings change from step to step: a number of the step, not of the graph.

Dynamo takes a Python number that has changed for an input, but PyTorch's ops take some as constants: each
value would need a graph of its own. Here the number is a tensor.

    dropout(x, p) = x · kept / (1 − p), kept ~ Bernoulli(1 − p)
    loss(s) = (1 − s) · loss of the target + s · mean loss of all classes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from checkmate_torch.ops.fast_functions import dropout_backward

__all__ = ["OF_CHANGING_NUMBERS"]


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """``F.dropout`` with the bits of eager PyTorch; the probability is a tensor on the CPU."""
    if not training:
        return x
    y: Tensor = torch.ops.checkmate_torch.dropout(x, _as_tensor(p))[0]
    return x.copy_(y) if inplace else y


def _as_tensor(number: float) -> Tensor:
    return torch.ones((), dtype=torch.float64, device="cpu") * number


@torch.library.custom_op(
    "checkmate_torch::dropout", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _drop(x: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """The values after dropout, and a mask of those that are kept."""
    p = rate.item()
    if p in (0, 1):  # nothing is drawn
        mask = torch.full_like(x, 1 - p, dtype=torch.bool)
        return x * mask, mask
    if x.is_cuda:
        return torch.native_dropout(x, p, True)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return dropout_backward(x, mask, _factor(x, p)), mask


@_drop.register_fake
def _(x: Tensor, _rate: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


@torch.library.custom_op("checkmate_torch::dropout_backward", mutates_args=())
def _drop_backward(gradient: Tensor, mask: Tensor, rate: Tensor) -> Tensor:
    return dropout_backward(gradient, mask, _factor(gradient, rate.item()))


@_drop_backward.register_fake
def _(gradient: Tensor, _mask: Tensor, _rate: Tensor) -> Tensor:
    return torch.empty_like(gradient)


def _factor(x: Tensor, p: float) -> float:
    """What kept values are multiplied by: a CPU's kernel rounds it to the type of x, CUDA's does not."""
    if p == 1:
        return 0.0
    return 1 / (1 - p) if x.is_cuda else torch.ones((), dtype=x.dtype).div_(1 - p).item()


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], inputs[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, None]:
    return _drop_backward(gradient, *ctx.saved_tensors), None


_drop.register_autograd(_differentiate, setup_context=_keep)


def _bernoulli(x: Tensor, p: float = 0.5) -> Tensor:
    """``x.bernoulli_(p)``, by which libraries drop whole paths."""
    drawn: Tensor = torch.ops.checkmate_torch.bernoulli(x.detach(), _as_tensor(p))
    return x.copy_(drawn)


@torch.library.custom_op(
    "checkmate_torch::bernoulli", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _draw(like: Tensor, rate: Tensor) -> Tensor:
    return torch.empty_like(like).bernoulli_(rate.item())


@_draw.register_fake
def _(like: Tensor, _rate: Tensor) -> Tensor:
    return torch.empty_like(like)


def _batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm`` in two parts: normalise by the batch's statistics, then update the running ones."""
    if mean is None or variance is None or not training:
        return functional.batch_norm(x, mean, variance, weight, bias, training, 0.0, eps)
    of_batch = torch.zeros_like(mean), torch.zeros_like(variance)
    y = functional.batch_norm(x, *of_batch, weight, bias, training, 1.0, eps)
    for running, new in zip((mean, variance), of_batch, strict=True):
        running.mul_(1 - momentum).add_(new * momentum)
    return y


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``F.cross_entropy`` without its deprecated arguments."""
    if torch.is_autocast_enabled("cpu") and not input.is_cuda:
        input, weight = input.float(), weight if weight is None else weight.float()
        target = target.float() if target.is_floating_point() else target
    dim = min(1, input.dim() - 1)
    share = label_smoothing / input.shape[dim]
    if target.is_floating_point():
        smoothed = target * (1 - label_smoothing) + share
        return functional.cross_entropy(input, smoothed, weight, reduction=reduction)
    logarithms = functional.log_softmax(input, dim)
    settings: Any = {"ignore_index": ignore_index, "reduction": reduction}
    of_target = functional.nll_loss(logarithms, target, weight, **settings)
    ignored = target == ignore_index
    counted = torch.ones_like(target) if weight is None else weight[target.masked_fill(ignored, 0)]
    if weight is not None:
        logarithms = logarithms * weight.view(-1, *[1] * (input.dim() - dim - 1))
    of_all = (-logarithms.sum(dim)).masked_fill(ignored, 0)
    if reduction != "none":
        of_all = of_all.sum()
    if reduction == "mean":
        of_all = of_all / counted.masked_fill(ignored, 0).sum()
    return of_target * (1 - label_smoothing) + of_all * share


OF_CHANGING_NUMBERS: Mapping[Callable[..., object], tuple[str, Callable[..., object]]] = {
    functional.dropout: ("p", _dropout),
    Tensor.bernoulli_: ("p", _bernoulli),
    functional.batch_norm: ("momentum", _batch_norm),
    functional.cross_entropy: ("label_smoothing", _cross_entropy),
}
"""Function → the argument that may change from step to step, and the function that then runs instead."""

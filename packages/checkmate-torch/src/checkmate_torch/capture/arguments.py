"""Check what a user passes, before anything is traced: model, optimizer, loss, the number of plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = [
    "Loss",
    "check_loss",
    "check_max_plans",
    "check_module",
    "check_optimizer",
    "check_step",
    "check_trains",
]

Loss = Callable[[Any], Tensor]
"""Maps the model's output to a scalar."""


def check_module(model: object) -> None:
    """Raise TypeError, which says the way out, unless this is a torch.nn.Module."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(
            f"model is the class {model.__name__}, must be a module: make one, {model.__name__}(…)"
        )
    way_out = (
        "a function goes into the forward method of a torch.nn.Module, or into "
        "torch.compile(function, backend='checkmate', options={'budget': '8GiB'})"
        if callable(model)
        else "pass a torch.nn.Module"
    )
    raise TypeError(f"model is {model!r:.80}, must be a torch.nn.Module: {way_out}")


def check_optimizer(optimizer: object) -> None:
    """Raise TypeError, which says the way out, unless this is a torch.optim.Optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer is {optimizer!r:.80}, must be a torch.optim.Optimizer of the model's parameters: "
            "optimizer=torch.optim.Adam(model.parameters())"
        )


def check_trains(optimizer: Optimizer | None, model: nn.Module) -> None:
    """Raise ValueError if there is an optimizer, and it holds no parameter of the model."""
    if optimizer is None:
        return
    known = set(map(id, model.parameters()))
    if not any(id(p) in known for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            "the optimizer holds no parameter of this model, so that its state would be counted in vain: "
            "make it with this model's parameters, after those are final"
        )


def check_loss(loss: object) -> None:
    """Raise TypeError, which says the way out, unless this is a function, or None for no loss."""
    name = _of_torch(loss)
    if loss is not None and (name or isinstance(loss, type) or not callable(loss)):
        shown = f"PyTorch's {name}, which needs a target too" if name else f"{loss!r:.80}"
        raise TypeError(
            f"loss is {shown}, must be a function of the model's output alone that returns a scalar tensor: "
            "loss=lambda output: torch.nn.functional.cross_entropy(output, target)"
        )


def check_max_plans(max_plans: object) -> None:
    """Raise ValueError unless max_plans is a positive integer."""
    if isinstance(max_plans, bool) or not isinstance(max_plans, int) or max_plans < 1:
        raise ValueError(f"max_plans is {max_plans!r}, must be a whole number of kinds of inputs ≥ 1")


def check_step(model: object, loss_fn: object, optimizer: object) -> None:
    """Raise TypeError, which says the way out, unless model, loss function and optimizer can make a step."""
    check_module(model)
    name = _of_torch(loss_fn)
    if name or isinstance(loss_fn, type) or not callable(loss_fn):
        shown = f"PyTorch's {name}" if name else f"{loss_fn!r:.80}"
        raise TypeError(
            f"loss_fn is {shown}, which is not called with the model: "
            "write loss_fn=lambda model, x, y: loss(model(x), y)"
        )
    check_optimizer(optimizer)


def _of_torch(loss: object) -> str:
    """The name of a loss of PyTorch's, function, class or module; "" for any other object."""
    home = loss if hasattr(loss, "__name__") else type(loss)
    return home.__name__ if home.__module__ in ("torch.nn.functional", "torch.nn.modules.loss") else ""

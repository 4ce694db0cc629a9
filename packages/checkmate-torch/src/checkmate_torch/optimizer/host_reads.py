"""Whether an optimizer's step copies a number from the GPU to the host, found out on fake tensors.

A step on a GPU that is captured may not wait for it. Fake tensors have no numbers, so an optimizer that reads
one stops there. A learning rate that is a tensor is such a number for some optimizers, and for some of their
implementations.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from checkmate_torch.ops.device import cpu_represents_gpu
from checkmate_torch.optimizer.separable import copied, step_alone
from checkmate_torch.private import ReadOnHostError, as_if_eager, fake_mode, unfaked

__all__ = ["tensors_read_on_host"]


def tensors_read_on_host(optimizer: Optimizer) -> tuple[str, ...] | None:
    """The settings that are tensors on the GPU of which a step needs the numbers on the host.

    Returns:
        Names of settings; empty if the step reads other tensors; None if it reads nothing.
    """
    on_gpu = {
        name
        for group in optimizer.param_groups
        for name, value in group.items()
        if isinstance(value, Tensor) and (value.is_cuda or cpu_represents_gpu())
    }
    if not _reads(optimizer, on_gpu):
        return None
    return tuple(sorted(on_gpu)) if on_gpu and not _reads(optimizer, set()) else ()


def _reads(optimizer: Optimizer, on_gpu: set[str]) -> bool:
    """Whether a step reads a number, with these tensors on a GPU.

    The loop over parameters decides, unless ``foreach`` is not off and is known to read nothing.
    """
    if not _tried(optimizer, on_gpu, foreach=False):
        return False
    batched = all(group.get("foreach", False) is not False for group in optimizer.param_groups)
    return not batched or _tried(optimizer, on_gpu, foreach=True) is not False


def _tried(optimizer: Optimizer, on_gpu: set[str], *, foreach: bool) -> bool | None:
    """Whether two steps of the first parameter of each group read a number; None = they can't run here."""
    firsts = [group["params"][0] for group in optimizer.param_groups if group["params"]]
    with unfaked():
        mode = fake_mode()
        with mode:
            twins = {id(p): _twin(p) for p in firsts}
        twin = copied(optimizer, twins)
        twin.state = defaultdict(dict)
        try:
            with mode, as_if_eager():
                _step_twice(twin, on_gpu, foreach=foreach)
        except ReadOnHostError:
            return True
        except Exception:  # noqa: BLE001 - of an optimizer that needs a real GPU
            return None
    return False


def _twin(parameter: Tensor) -> nn.Parameter:
    like = torch.empty(parameter.shape, dtype=parameter.dtype, device="cuda")
    return nn.Parameter(like, requires_grad=parameter.requires_grad)


def _step_twice(twin: Optimizer, on_gpu: set[str], *, foreach: bool) -> None:
    """Step for the first parameter of each group; the first step makes the state."""
    twin.param_groups = [
        {k: _placed(k, x, on_gpu) for k, x in group.items()} | {"params": group["params"][:1]}
        for group in twin.param_groups
    ]
    for group in twin.param_groups:
        if "foreach" in group:
            group["foreach"] = foreach
    for _ in range(2):
        for group in twin.param_groups:
            for p in group["params"]:
                p.grad = torch.empty_like(p) if p.requires_grad else None
        step_alone(twin)


def _placed(name: str, value: object, on_gpu: set[str]) -> object:
    """A setting of the twin: as a tensor of the GPU, or as a number in the place of one."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="cuda") if name in on_gpu else 1.0

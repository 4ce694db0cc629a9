"""Step an optimizer on tensors that have shapes and no memory, to count the bytes that a step would hold.

A copy of the optimizer, on the device ``meta``, does what the optimizer would do, and
:class:`~checkmate_torch.memory.live_bytes.LiveBytes` counts each storage from its op to its release. A number
that the optimizer reads from a tensor, such as a norm, is taken as 1.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from checkmate import BudgetError
from checkmate_torch.memory.live_bytes import LiveBytes
from checkmate_torch.ops.storages import rounded, storages_of, tensors_in
from checkmate_torch.optimizer.separable import copied, step_alone, without_kernels
from checkmate_torch.private import local_of, unfaked

__all__ = ["on_meta", "optimizer_bytes"]


def optimizer_bytes(optimizer: Optimizer) -> int:
    """Bytes of an optimizer's state after its first step.

    A copy of it takes one step on tensors without memory, so that nothing is allocated or changed. Adam's
    state is two moments for each parameter. The temporaries of the step are not counted.

    Raises:
        BudgetError: if the optimizer can't take such a step, e.g. because it wants a closure.

    >>> layer = torch.nn.Linear(16, 16, bias=False)
    >>> optimizer_bytes(torch.optim.Adam(layer.parameters())) // layer.weight.nbytes
    2
    """
    try:
        with unfaked():
            twin = on_meta(optimizer)
            with LiveBytes(reads_ones=True):
                step_alone(twin)
    except Exception as error:
        raise BudgetError(
            f"how many bytes {type(optimizer).__name__} will keep can't be predicted ({error}): "
            "pass reserve= instead"
        ) from error
    device = next(p.device for group in optimizer.param_groups for p in group["params"])
    return sum(rounded(storage.nbytes(), device) for storage in storages_of(dict(twin.state)).values())


def on_meta(optimizer: Optimizer) -> Optimizer:
    """A copy of an optimizer, with its state, on the device ``meta``; each parameter has a gradient.

    State tensors without dimensions stay real: they count steps, and optimizers read them.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    twins = {id(p): nn.Parameter(_like(p), requires_grad=p.requires_grad) for p in parameters}
    for p in twins.values():
        p.grad = torch.empty_like(p) if p.requires_grad else None
    memo: dict[int, Any] = dict(twins)
    states = [dict(state) for state in optimizer.state.values() if isinstance(state, Mapping)]
    memo |= {id(value): _like(value) for value in tensors_in(states) if value.dim()}
    twin = without_kernels(copied(optimizer, twins))
    twin.state = defaultdict(
        dict, {memo.get(id(k), k): copy.deepcopy(state, memo) for k, state in optimizer.state.items()}
    )
    return twin


def _like(value: Tensor) -> Tensor:
    value = local_of(value)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

"""Find out by trial whether an optimizer's step is a product of updates of one parameter each.

    step(p₁, …, pₙ) = update(pₙ) ∘ … ∘ update(p₁) ∘ step()

Each side runs three steps, on copies of the parameters with at most four numbers a dimension. The right side
runs as a whole step does: the updates in reverse order, then the optimizer's ``step`` without any gradient,
which advances its counters of steps. If parameters, state and settings are equal to the bit, the optimizer
is separable. It is not if it mixes parameters (a common norm or learning rate), draws random
numbers, or counts the calls of ``step`` in a state of its own.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from checkmate import CheckmateError, UnsupportedModelError
from checkmate_torch.ops.device import cpu_represents_gpu
from checkmate_torch.private import FakeTensor, step_without_wrappers, unfaked

__all__ = [
    "OneParameterStep",
    "UnsupportedOptimizerError",
    "copied",
    "is_memoryless",
    "overwrites_gradients",
    "refuse_memoryless",
    "step_alone",
    "without_kernels",
]

_LARGEST = 4
_GRADIENTS = (1.0, 1e4, 1e-4)
"""Factor of the random gradients of each step: a limit of the gradients' common norm acts in some step."""

_SCHEDULED_STEP = "step"
"""The instance attribute in which learning rate schedulers put a step bound to the original optimizer."""

_WAY_OUT = "use checkmate.torch.compile(model, budget) and call optimizer.step() yourself"


class UnsupportedOptimizerError(CheckmateError, NotImplementedError):
    """The optimizer can't update one parameter at a time, or holds parameters of another model."""


def overwrites_gradients(optimizer: Optimizer) -> bool:
    """Whether the updates of a separable optimizer overwrite the gradients that they read.

    The optimizer is not changed; its parameters may be fake, or on the device ``meta``.

    Raises:
        UnsupportedOptimizerError: if it is not separable.
    """
    name = type(optimizer).__name__
    if not {"param_groups", "state"} <= vars(optimizer).keys():
        raise UnsupportedOptimizerError(
            f"{name} wraps another optimizer: pass the inner one, for example optimizer.optimizer"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise UnsupportedOptimizerError(
            f"{name} has differentiable=True, but updates in place can't be differentiated: set it to False, "
            f"or {_WAY_OUT}"
        )
    with unfaked(), torch.device("cpu"), torch.random.fork_rng(_gpus(optimizer)):
        try:
            (together, same), (apart, same_apart) = (_tried(optimizer, way) for way in (_together, _apart))
        except Exception as error:
            raise UnsupportedOptimizerError(
                f"{name} can't update one parameter at a time: a trial on small tensors ended with "
                f"{type(error).__name__}: {error}. Instead, {_WAY_OUT}"
            ) from error
    if not _equal(together, apart):
        raise UnsupportedOptimizerError(
            f"{name} does not treat each parameter alone: in a trial on small tensors, updates of one "
            f"parameter at a time gave other numbers than a step of all. Instead, {_WAY_OUT}"
        )
    return not (same and same_apart)


def copied(optimizer: Optimizer, twins: Mapping[int, Tensor]) -> Optimizer:
    """A copy of an optimizer, without hooks and state; ``twins`` replace parameters, by their ``id``.

    Of the objects that a step changes, both share only the parameters without a twin.
    """
    optimizer = _inside(optimizer)
    memo: dict[int, Any] = {id(p): twins.get(id(p), p) for p in _parameters(optimizer)}
    twin = copy.copy(optimizer)  # PyTorch copies no hooks
    twin.state = defaultdict(dict)
    twin.param_groups = [
        {
            "params": [memo[id(p)] for p in group["params"]],
            **copy.deepcopy({k: v for k, v in group.items() if k != "params"}, memo),
        }
        for group in optimizer.param_groups
    ]
    if isinstance(optimizer, torch.optim.Adagrad):  # PyTorch before 2.13 makes its state in the constructor
        start = optimizer.defaults.get("initial_accumulator_value", 0)
        groups = [dict(group) for group in twin.param_groups]
        twin.state = torch.optim.Adagrad(groups, initial_accumulator_value=start).state
    others = {k: v for k, v in vars(optimizer).items() if k not in vars(twin) and k != _SCHEDULED_STEP}
    vars(twin).update(copy.deepcopy(others, memo))  # PyTorch copies no attributes of other authors
    return twin


def _inside(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside of a wrapper without state, such as accelerate's; any other is returned unchanged.

    Assigning to the state of such a wrapper, or of a copy of it, would change the optimizer inside.
    """
    inner = vars(optimizer).get("optimizer")
    if isinstance(inner, Optimizer) and inner.state is optimizer.state:
        return _inside(inner)
    return optimizer


class OneParameterStep:
    """Steps an optimizer for one parameter at a time."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        shared = ("defaults", "state", "param_groups")
        self._hooks = {k: v for k, v in vars(copy.copy(optimizer)).items() if k not in shared}

    def __call__(self, group: Mapping[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        """Update one parameter and its state, as a step of the optimizer with its group's settings would.

        The parameter is left without a gradient.
        """
        optimizer = self._optimizer
        worker = object.__new__(type(optimizer))
        own = {**vars(optimizer), **self._hooks, "param_groups": [{**group, "params": [parameter]}]}
        own.pop(_SCHEDULED_STEP, None)
        worker.__dict__ = own
        parameter.grad = gradient
        try:
            step_alone(worker)
        finally:
            parameter.grad = None


def without_kernels(optimizer: Optimizer) -> Optimizer:
    """Switch an optimizer to PyTorch's loop over parameters, which any device can run; returns it."""
    for group in optimizer.param_groups:
        group.update({k: False for k in ("fused", "foreach", "capturable") if k in group})
    return optimizer


def step_alone(optimizer: Optimizer) -> None:
    """Step without calling hooks, neither the optimizer's own nor PyTorch's global ones."""
    step_without_wrappers(optimizer)(optimizer)


def is_memoryless(value: Tensor) -> bool:
    """Whether a tensor has a shape and no memory."""
    return value.is_meta or isinstance(value, FakeTensor)


def refuse_memoryless(model: nn.Module) -> None:
    """Raise UnsupportedModelError if a parameter or buffer is fake, or on the device ``meta``."""
    if any(map(is_memoryless, (*model.parameters(), *model.buffers()))):
        raise UnsupportedModelError(
            "the model was traced without memory, on the device meta or as fake tensors, so there is nothing "
            "to run: trace it with real parameters"
        )


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _gpus(optimizer: Optimizer) -> list[torch.device]:
    return sorted({p.device for p in _parameters(optimizer) if p.is_cuda and not is_memoryless(p)}, key=str)


def _seed(optimizer: Optimizer, seed: int) -> None:
    """Seed the generators that the trial uses; ``torch.manual_seed`` would seed every GPU's, too."""
    torch.default_generator.manual_seed(seed)
    for device in _gpus(optimizer):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _tried(
    optimizer: Optimizer, way: Callable[[Optimizer, Sequence[Tensor | None]], None]
) -> tuple[list[object], bool]:
    """The results of a few steps of a small copy, and whether they left the gradients as they were."""
    _seed(optimizer, 0)
    twin = copied(optimizer, {id(p): _small(p) for p in _parameters(optimizer)})
    parameters, same, results = _parameters(twin), True, list[object]()
    known = set(map(id, parameters))
    if cpu_represents_gpu() or any(map(is_memoryless, _parameters(optimizer))):
        twin = without_kernels(twin)
    for step, factor in enumerate(_GRADIENTS):
        _seed(optimizer, step)
        gradients = [factor * torch.randn_like(p) if p.requires_grad else None for p in parameters]
        given = copy.deepcopy(gradients)
        way(twin, given)
        same = same and _equal(gradients, given)
        others = [v for k, v in twin.state.items() if id(k) not in known]
        settings = [{k: v for k, v in group.items() if k != "params"} for group in twin.param_groups]
        results += copy.deepcopy([parameters, [twin.state.get(p) for p in parameters], others, settings])
    return results, same


def _small(parameter: nn.Parameter) -> nn.Parameter:
    device = "cpu" if is_memoryless(parameter) else parameter.device
    shape = [min(n, _LARGEST) for n in parameter.shape]
    numbers = torch.randn(shape, device=device).to(parameter.dtype)
    return nn.Parameter(numbers, requires_grad=parameter.requires_grad)


def _together(optimizer: Optimizer, gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(_parameters(optimizer), gradients, strict=True):
        parameter.grad = gradient
    step_alone(optimizer)
    for parameter in _parameters(optimizer):
        parameter.grad = None


def _apart(optimizer: Optimizer, gradients: Sequence[Tensor | None]) -> None:
    """Update one parameter at a time, the last one first, in the order of a compiled step's backward pass."""
    update = OneParameterStep(optimizer)
    places = [(group, p) for group in optimizer.param_groups for p in group["params"]]
    for (group, parameter), gradient in reversed([*zip(places, gradients, strict=True)]):
        if gradient is not None:
            update(group, parameter, gradient)
    step_alone(optimizer)


def _equal(one: object, other: object) -> bool:
    """Whether two nests of containers hold equal tensors, to the bit, and other values that are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = (one.shape, one.dtype) == (other.shape, other.dtype)
        return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)

"""A habit: a training loop of a few steps that many people write, around a model that a door may plan.

A habit is a generator function. It passes each model through the :class:`Door` that it gets. After each step
it yields the tensors that must not differ: losses, gradients, parameters. The last step is like an earlier
one, so that nothing is planned in it, and its memory can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["HABITS", "Door", "Habit", "Steps", "batch", "habit", "mlp", "of", "sgd", "square", "trained"]

WIDTH, OUTPUTS, BATCH = 64, 8, 512

Steps = Iterator[Iterable[Tensor]]
"""The tensors of each step that must be equal to those of plain PyTorch."""


class Door(Protocol):
    """Makes a model train within a budget; the door of plain PyTorch returns the model unchanged."""

    def __call__(self, model: nn.Module, optimizer: Optimizer | None = None) -> Any:
        """The model to call; planned with the optimizer's state if there is one."""


Habit = Callable[[Door], Steps]

HABITS: dict[str, Habit] = {}
"""Name → habit, in the order of the table."""


def habit(name: str) -> Callable[[Habit], Habit]:
    """Register a habit."""

    def register(function: Habit) -> Habit:
        HABITS[name] = function
        return function

    return register


def mlp(
    depth: int = 4, activation: Callable[[], nn.Module] = nn.GELU, *between: Callable[[], nn.Module]
) -> nn.Sequential:
    """A network whose activations, 128 KiB each, need more memory than its parameters."""
    made = (lambda: nn.Linear(WIDTH, WIDTH), activation, *between)
    return nn.Sequential(*(make() for _ in range(depth) for make in made), nn.Linear(WIDTH, OUTPUTS))


def batch(seed: int = 0, size: int = BATCH) -> tuple[Tensor, Tensor]:
    """Inputs ``[size, 64]`` and targets ``[size, 8]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, WIDTH, generator=generator), torch.randn(size, OUTPUTS, generator=generator)


def sgd(*models: nn.Module) -> Optimizer:
    """An optimizer without state."""
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean square error."""
    return (outputs - targets).square().mean()


def of(*models: nn.Module, more: Iterable[Tensor] = ()) -> Iterator[Tensor]:
    """Further tensors, and the parameters, buffers and gradients of models; read when the step is compared.

    Once it is read, an iterator holds no gradient, as a list would do through the next step.
    """
    yield from more
    for model in models:
        yield from model.parameters()
        yield from model.buffers()
        yield from (p.grad for p in model.parameters() if p.grad is not None)


def trained(
    model: nn.Module,
    run: Callable[..., Any],
    optimizer: Optimizer | None = None,
    *,
    steps: int = 3,
    size: int = BATCH,
    prepare: Callable[[Tensor], Tensor] = lambda x: x,
    call: Callable[[Any, Tensor], Tensor] = lambda run, x: run(x),
) -> Steps:
    """Train for some steps in the most usual way.

    Args:
        model: the model.
        run: what the door made of it.
        optimizer: default SGD.
        steps: the number of steps.
        size: of the batch.
        prepare: makes the inputs of a batch.
        call: runs the model on the inputs.
    """
    optimizer = sgd(model) if optimizer is None else optimizer
    for step in range(steps):
        inputs, targets = batch(step, size)
        inputs = prepare(inputs)
        optimizer.zero_grad()
        loss = square(call(run, inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield of(model, more=[loss])

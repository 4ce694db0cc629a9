"""Planning without running: a training step traced on fake tensors, which have shapes and no memory.

    trace: (model, example inputs, loss) ↦ graph        plan: the same and a budget ↦ schedule

Nothing of the model is allocated or run. Measured costs run one op at a time on made-up inputs; a roofline or
FLOPs run nothing.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from checkmate import CheckmateError, DFGraph, Solution, write_graph
from checkmate.plugins import CostModel, Solver
from checkmate.problem import OnProgress
from checkmate.report import Account
from checkmate.units import Budget
from checkmate_torch.backend import Planner, TracingDone
from checkmate_torch.capture import captured
from checkmate_torch.compiled import CompiledModule
from checkmate_torch.joint import Traced, UnsupportedModelError
from checkmate_torch.meter import resident_bytes
from checkmate_torch.options import Options

__all__ = ["Frontend", "Loss", "TracedModel", "budget_in_bytes", "plan", "trace"]

Loss = Callable[[Any], Tensor]
"""From what the model returns to a scalar."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracedModel:
    """A training step that was traced and not run.

    Attributes:
        graph: the step, in the cost model's unit; what ``checkmate.solve`` and all of Checkmate's tools take.
        traced: PyTorch's joint graph and how it corresponds to ``graph``.
        account: what each byte is held for.
    """

    traced: Traced
    account: Account

    @property
    def graph(self) -> DFGraph:
        """The training step."""
        return self.traced.graph

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph in the wire format: JSON, or msgpack if the name ends in ``.msgpack``."""
        write_graph(path, self.graph)

    def __repr__(self) -> str:
        """That of the graph."""
        return f"<TracedModel of {self.graph!r}>"


def trace(
    model: nn.Module,
    example_inputs: object,
    *,
    loss: Loss | None = None,
    cost_model: str | CostModel = "profiled",
    workspaces: bool | None = None,
    optimizer: Optimizer | None = None,
    reserve: int | str = 0,
    loss_bytes: int | str | None = None,
    cache: bool = True,
    on_progress: OnProgress | None = None,
) -> TracedModel:
    """Trace one training step of a model without running it, and without memory for it.

    Args:
        model: is not changed. Its parameters may be real, fake, or on the device ``meta``, which stands for
            the CPU then: a model of any size fits.
        example_inputs: a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments;
            real, fake or on ``meta``. Only shapes and dtypes matter.
        loss: from the model's output to a scalar, traced with the model and exact. Without it the loss is one
            op that reads the outputs and makes their gradients, charged as ``loss_bytes`` in :func:`compile`
            says; a model that returns its loss needs none.
        cost_model: as in :func:`compile`; ``"roofline-H100-80GB"`` for a device that is not at hand.
        workspaces: whether to run each distinct op once, on made-up inputs, to measure its workspace; None =
            only if the cost model is ``"profiled"``, which runs them anyway. Without, workspaces are 0.
        optimizer: of the model's parameters; its state is counted as it will be after the first step.
        reserve: bytes that the step holds besides.
        loss_bytes: as in :func:`compile`.
        cache: whether measured costs are kept on disk, and taken from there.
        on_progress: called while ops are timed.

    Raises:
        UnsupportedModelError: if the model can't be captured, or nothing in it needs a gradient.
        CostError: if the cost model can't price the step.

    >>> with torch.device("meta"):
    ...     model = nn.Sequential(nn.Linear(2**14, 2**14), nn.ReLU(), nn.Linear(2**14, 1))
    >>> traced = trace(model, torch.empty(2**12, 2**14, device="meta"), cost_model="flops")
    >>> traced.graph.cost_unit, traced.graph.base_size > 2**30
    ('flop', True)
    """
    options = Options.parse(
        budget="100%",
        cost_model=cost_model,
        workspaces=cost_model == "profiled" if workspaces is None else workspaces,
        optimizer=optimizer,
        reserve=reserve,
        loss_bytes=loss_bytes,
        cache=cache,
        on_progress=on_progress,
    )
    if isinstance(model, CompiledModule):
        model = model.original
    args, kwargs = _arguments(example_inputs)
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))]
    mode = torch._guards.detect_fake_mode(tensors) or FakeTensorMode(allow_non_fake_inputs=True)
    twin = _twin(model, mode)
    whole = twin if loss is None else _WithLoss(twin, loss)
    planner = Planner(options, module=twin, only_trace=True)
    run = captured(whole, planner)
    args, kwargs = tree_map(lambda x: _fake(x, mode), (args, kwargs))
    try:
        with mode, torch.enable_grad():
            run(*args, **kwargs)
    except TracingDone as done:
        return TracedModel(traced=done.traced, account=done.account)
    raise UnsupportedModelError(
        "no parameter and no input of the model needs a gradient, so there is no backward pass to plan: "
        "requires_grad_() says what is trained"
    )


def plan(
    model: nn.Module,
    example_inputs: object,
    budget: Budget,
    *,
    loss: Loss | None = None,
    solver: str | Solver = "auto",
    cost_model: str | CostModel = "profiled",
    workspaces: bool | None = None,
    time_limit: float = 10.0,
    optimizer: Optimizer | None = None,
    reserve: int | str = 0,
    loss_bytes: int | str | None = None,
    cache: bool = True,
    on_progress: OnProgress | None = None,
    throw: bool = True,
) -> Solution:
    """Find out what a budget would cost, without running the model: :func:`trace`, then ``checkmate.solve``.

    Args:
        model: as in :func:`trace`.
        example_inputs: as in :func:`trace`.
        budget: as in :func:`compile`. ``"auto"`` is what the device of the model has left now, and what of
            the model and the inputs is there already.
        loss: as in :func:`trace`.
        solver: as in :func:`compile`.
        cost_model: as in :func:`trace`.
        workspaces: as in :func:`trace`. Without them the peak may be too low, by what the largest op needs.
        time_limit: seconds for the solver.
        optimizer: as in :func:`trace`.
        reserve: as in :func:`trace`.
        loss_bytes: as in :func:`trace`.
        cache: whether measured costs and schedules are kept on disk, and taken from there.
        on_progress: called while ops are timed and while the solver runs.
        throw: False = without a schedule return a solution that says so, instead of raising.

    Raises:
        BudgetError: if the budget can't be read.
        InfeasibleBudgetError: if no schedule was found; says what budget would do.
        UnsupportedModelError, CostError: as :func:`trace`.
    """
    options = Options.parse(
        budget=budget, solver=solver, time_limit=time_limit, cache=cache, on_progress=on_progress
    )
    traced = trace(
        model,
        example_inputs,
        loss=loss,
        cost_model=cost_model,
        workspaces=workspaces,
        optimizer=optimizer,
        reserve=reserve,
        loss_bytes=loss_bytes,
        cache=cache,
        on_progress=on_progress,
    )
    return options.on(*_resident(model, example_inputs)).decided(traced.graph, traced.account, throw=throw)


def budget_in_bytes(budget: Budget, model: nn.Module, example_inputs: object = ()) -> Budget:
    """The budget, ``"auto"`` being replaced by what the model's device has left now, in bytes.

    Raises:
        BudgetError: if that is not known.
    """
    return Options.parse(budget=budget).on(*_resident(model, example_inputs)).budget


class Frontend:
    """The frontend ``torch``: what ``checkmate trace --torch package.module:factory`` asks."""

    def trace(
        self, program: nn.Module | Callable[[], Sequence[object]], /, *args: object, **options: Any
    ) -> TracedModel:
        """Trace a model with positional inputs, or what a factory makes.

        Args:
            program: a module; or a function without arguments that returns ``(model, example_inputs)`` or
                ``(model, example_inputs, loss)``. It is called under fake tensors, so that it allocates
                nothing.
            args: the inputs of a module.
            options: as in :func:`trace`.
        """
        if isinstance(program, nn.Module):
            return trace(program, args, **options)
        with FakeTensorMode(allow_non_fake_inputs=True):
            made = program()
        if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
            raise ProgramError(
                f"{program!r} returned {type(made).__name__}: a factory for tracing returns "
                "(model, example_inputs) or (model, example_inputs, loss)"
            )
        model, example_inputs, *loss = made
        return trace(model, example_inputs, loss=cast("Loss", loss[0]) if loss else None, **options)


class ProgramError(CheckmateError, TypeError):
    """What was given to trace is neither a module nor a factory of one."""


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return self.loss(self.model(*args, **kwargs))


def _arguments(example_inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Positional and keyword arguments."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _resident(model: nn.Module, example_inputs: object) -> tuple[torch.device, int]:
    """The device of a model, and the bytes that it and its inputs hold there; fake tensors hold none."""
    values = [*model.parameters(), *model.buffers(), *tree_leaves(_arguments(example_inputs))]
    tensors = [x for x in values if isinstance(x, Tensor) and not x.is_meta]
    device = next((x.device for x in tensors if x.dim()), torch.device("cpu"))
    return device, resident_bytes([x for x in tensors if not isinstance(x, FakeTensor)])


def _twin(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy of the model with fake tensors in the place of all that it holds; nothing is allocated.

    A model that is fake is its own twin.

    Raises:
        UnsupportedModelError: if the model can't be copied.
    """
    memo: dict[int, object] = {}
    if all(isinstance(x, FakeTensor) for x in (*model.parameters(), *model.buffers())):
        return model
    for module in model.modules():
        held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        for value in held:
            if isinstance(value, Tensor) and id(value) not in memo:
                memo[id(value)] = _fake(value, mode)
    try:
        return copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"the model can't be copied to be traced on fake tensors: {error}. Build it under "
            "torch._subclasses.FakeTensorMode(): then it is traced as it is"
        ) from error


def _fake(value: object, mode: FakeTensorMode) -> object:
    """A fake tensor like another one, on its device, or on the CPU for one that is on none."""
    if not isinstance(value, Tensor):
        return value
    if value.device.type != "meta":
        return value if isinstance(value, FakeTensor) else mode.from_tensor(value)
    with mode:
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    if isinstance(value, nn.Parameter):
        return nn.Parameter(like, requires_grad=value.requires_grad)
    return like.requires_grad_(value.requires_grad)

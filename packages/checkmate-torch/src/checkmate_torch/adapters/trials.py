"""Small programs on which the conformance kit tests the executor: one for each kind of op that needs care."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from checkmate import Schedule
from checkmate.framework import TracingSettings
from checkmate.plugins import Observed
from checkmate_torch.adapters.executor import Executor
from checkmate_torch.adapters.observe import CpuMemory, CudaMemory, slack
from checkmate_torch.api.trace import TracedModel, trace
from checkmate_torch.api.trace_step import TracedTraining, trace_step
from checkmate_torch.capture.arguments import Loss

__all__ = ["TRIALS", "ModelTrial", "StepTrial"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelTrial:
    """A model with inputs and a loss.

    Attributes:
        name: for reports.
        make: a new model.
        shape: shape of the model's input, a float32 tensor.
        loss: from the model's output to a scalar.
        loss_in_graph: whether the loss is traced; otherwise it runs outside of the schedule.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Loss
    loss_in_graph: bool = True

    @cached_property
    def model(self) -> nn.Module:
        """The model, on the trial's device."""
        torch.manual_seed(1)
        return self.make().to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the program runs."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def _start(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    @cached_property
    def _input(self) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        return torch.randn(self.shape, generator=generator).to(self.device)

    def traced(self) -> TracedModel:
        """The model with its loss, workspaces measured."""
        self.restore()
        loss = self.loss if self.loss_in_graph else None
        settings: TracingSettings = {"cost_model": "flops", "workspaces": True, "cache": False}
        return trace(self.model, self._input, loss=loss, **settings)

    def plain(self) -> Sequence[npt.NDArray[Any]]:
        """Loss, gradients and buffers after one step of plain PyTorch."""
        return self._step(lambda x: self.loss(self.model(x)))

    def run(self, bound: Callable[..., Any]) -> Sequence[npt.NDArray[Any]]:
        """Loss, gradients and buffers after one step of a bound model."""
        return self._step(bound if self.loss_in_graph else lambda x: self.loss(bound(x)))

    def observe(
        self, executor: Executor, traced: TracedModel | TracedTraining, schedule: Schedule
    ) -> Observed:
        """Observe the second step of a bound model; the first one compiles it."""
        memory = CudaMemory() if self.device.type == "cuda" else CpuMemory()
        ops: list[int] = []

        def watch(op: int) -> None:
            ops.append(op)
            memory.mark()

        bound = executor.bind(traced, schedule, watch=watch)
        self.run(bound)
        ops.clear()
        with memory:
            results = self.run(bound)
        under, over = slack(traced)
        return Observed(
            results=results,
            ops=ops[:-1],
            peaks=memory.peaks,
            held=memory.held,
            left=memory.left,
            under=under,
            over=over,
        )

    def _step(self, loss_of: Callable[[Tensor], Tensor]) -> list[npt.NDArray[Any]]:
        """Train one step; returns its results on the host, and frees everything else."""
        self.restore()
        loss = loss_of(self._input)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        found = [_on_host(x) for x in (loss, *gradients, *self.model.buffers())]
        self.model.zero_grad(set_to_none=True)
        return found

    def restore(self) -> None:
        """Set the model and the random generator to the state from which each run starts."""
        self.model.load_state_dict(self._start)
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(3)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTrial(ModelTrial):
    """A whole training step with updates by Adam; the graph has no boundary."""

    @cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Adam for all parameters; the first step makes its state."""
        return torch.optim.Adam(self.model.parameters(), lr=0.01)

    def traced(self) -> TracedTraining:  # type: ignore[override]
        """The step, workspaces measured."""
        self.restore()
        settings: TracingSettings = {"cost_model": "flops", "workspaces": True, "cache": False}
        return trace_step(self.model, self._loss, self.optimizer, (self._input,), **settings)

    def plain(self) -> Sequence[npt.NDArray[Any]]:
        """Loss, parameters, buffers and optimizer state after one step of plain PyTorch."""

        def step(x: Tensor) -> Tensor:
            loss = self._loss(self.model, x)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            return loss.detach()

        return self.run(step)

    def run(self, bound: Callable[..., Any]) -> Sequence[npt.NDArray[Any]]:
        """Loss, parameters, buffers and optimizer state after one call of a bound step."""
        self.restore()
        loss = bound(self._input)
        state = [value for held in self.optimizer.state.values() for value in held.values()]
        return [_on_host(x) for x in (loss, *self.model.state_dict().values(), *state)]

    def _loss(self, model: nn.Module, x: Tensor) -> Tensor:
        return self.loss(model(x))

    def restore(self) -> None:
        """Restore the model, the random generator, and the optimizer's state."""
        super().restore()
        for held in self.optimizer.state.values():
            for value in held.values():
                value.zero_()


def _on_host(value: Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor outside of PyTorch's memory."""
    return np.array(value.detach().cpu().numpy())


class _Residual(nn.Module):
    """Convolutions with batch norm, an addition that skips them, and a pooling with indices."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        pooled: Tensor = F.max_pool2d(torch.relu(h + self.body(h)), 2)
        return pooled


class _Attention(nn.Module):
    """Layer norm, scaled dot-product attention over chunks of one product, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mix(self.norm(x)).view(4, 32, 12, 16).transpose(1, 2).chunk(3, 1)
        q, k, v = (part.contiguous() for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = x + self.out(mixed.transpose(1, 2).flatten(2))
        return found


class _InPlace(nn.Module):
    """Ops in place, on a slice too, and views that are read after them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x).relu_()
        left, right = h[:, :64], h[:, 64:]
        h = torch.sin(h).add_(right.repeat(1, 2))
        h[:, :32] = left[:, 32:] * 2
        found: Tensor = self.down(h.t().contiguous().t()).tanh_()
        return found


class _ManyOutputs(nn.Module):
    """Ops of several outputs, some of which nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(x)
        best, _ = h.topk(32, dim=1)
        ordered, places = torch.sort(h, dim=1)
        spread, _ = torch.var_mean(h, dim=1, keepdim=True)
        parts = torch.unbind(torch.tanh(ordered).view(-1, 4, 16), dim=1)
        scaled: Tensor = torch.cat([best, *parts[1:3]], dim=1) * torch.rsqrt(spread + 1)
        return scaled + places.float()


class _Branches(nn.Module):
    """Several outputs, one of them without a gradient, and a buffer that each step adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.one(x))
        self.seen += h.detach().mean(0)  # type: ignore[operator]
        return {"a": torch.sigmoid(self.two(h)), "b": torch.sin(h), "c": h.detach() * 2}


def _mean(y: Tensor) -> Tensor:
    return y.square().mean()


def _dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.3), nn.Linear(128, 64), nn.Dropout(0.2), nn.Softplus()
    )


def _tower() -> nn.Module:
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(64, 10))


TRIALS = (
    ModelTrial(name="convolution", make=_Residual, shape=(4, 4, 16, 16), loss=_mean),
    ModelTrial(name="dropout", make=_dropout, shape=(128, 64), loss=_mean),
    ModelTrial(name="attention", make=_Attention, shape=(4, 32, 64), loss=_mean),
    ModelTrial(name="in-place", make=_InPlace, shape=(128, 64), loss=_mean),
    ModelTrial(name="many-outputs", make=_ManyOutputs, shape=(128, 64), loss=_mean),
    ModelTrial(
        name="several-outputs", make=_Branches, shape=(128, 64), loss=lambda y: _mean(y["a"]) + _mean(y["b"])
    ),
    StepTrial(name="updates", make=_tower, shape=(128, 64), loss=_mean),
    StepTrial(name="updates-convolution", make=_Residual, shape=(4, 4, 16, 16), loss=_mean),
    ModelTrial(name="loss-outside", make=_tower, shape=(128, 64), loss=_mean, loss_in_graph=False),
)
"""The trials; they run on the GPU if there is one."""

"""A training loop (plain, enabled, or a compiled step), and the values and bytes after a few steps."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.amp import GradScaler

from checkmate import Budget, InfeasibleBudgetError
from checkmate_torch.api.compile_step import compile_step
from checkmate_torch.api.enable import enable
from checkmate_torch.costs.meter import memory_meter
from checkmate_torch.costs.workspaces import library_bytes
from checkmate_torch.planning.step_plan import StepPlan, Viewable
from checkmate_torch.selfcheck.answers import Setup
from checkmate_torch.selfcheck.networks import NETWORKS, Network

__all__ = ["LEAST", "OVER", "Loop", "Outcome", "difference", "forget_all", "setup_on"]

LEAST = "least"
WITHIN, LIVE_WITHIN, OVER = "within", "live bytes within", "OVER"
_STEPS = 3
_LEAST_SCALE = 1e-3
"""Numbers below this share of the largest number among values of their kind are taken as rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """The values after a few training steps, and the bytes that the last step took.

    Attributes:
        values: by name, on the host: losses, gradients of the last step, parameters, buffers, states of
            the optimizer and of the random generators.
        peak: most bytes held in the last step; on CUDA, the bytes of the blocks that the allocator gave out.
        live: the peak in bytes that were asked for; blocks of CUDA's allocator are up to 1 MiB larger.
        reserved: most bytes that the allocator had from the device in the last step; 0 on the CPU.
        device: where the steps ran.
    """

    values: dict[str, Tensor]
    peak: int
    live: int
    reserved: int
    device: torch.device

    def verdict(self, budget: int) -> str:
        """Whether the last step was within a budget, which bounds the live bytes."""
        return WITHIN if self.peak <= budget else LIVE_WITHIN if self.live <= budget else OVER


class Loop:
    """A network, a batch, an optimizer, and the lines of a training step.

    Attributes:
        model: the model, which returns its loss.
        inputs: the inputs of every step.
        optimizer: SGD with momentum, which keeps one state for each parameter.
    """

    def __init__(self, network: Network, setup: Setup, n: int | None = None) -> None:
        """Make the model and a batch of ``n`` examples, the same each time."""
        self.setup = setup
        self.model = network.model(setup)
        self.inputs = network.examples(setup, n)
        # Each parameter alone, as compile_step does it: PyTorch's own grouped updates may round otherwise.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, foreach=False)
        self.scaler = GradScaler(setup.device.type, enabled=network.dtype == torch.float16)
        self._whole: Callable[..., Tensor] | None = None
        self._planned: Viewable | None = None

    def plan(self, way: str, budget: Budget, **settings: Any) -> None:
        """Train within a budget from now on.

        Args:
            way: ``"enable"`` or ``"compile_step"``.
            budget: of the step; ``"least"`` is the least one that an error names.
            **settings: of the entry point.
        """
        if budget == LEAST:
            budget = self._least(way, **settings)
        settings.setdefault("reserve", self.setup.reserve)
        if way == "enable":
            planned = enable(self.model, budget, optimizer=self.optimizer, **settings)
            self._planned = cast("Viewable", planned)  # it is not sharded
        else:
            scaler = self.scaler if self.scaler.is_enabled() else None
            step = compile_step(self.model, _loss, self.optimizer, budget, scaler=scaler, **settings)
            self._whole = self._planned = step

    def _least(self, way: str, **settings: Any) -> int:
        self.plan(way, 2**10, **settings)
        try:
            self.forward_and_backward()
        except InfeasibleBudgetError as error:
            if error.minimum is None:
                raise
            return error.minimum
        raise ValueError("a step fits into one KiB")

    @property
    def last_plan(self) -> StepPlan:
        """The plan of the last step."""
        if self._planned is None:
            raise ValueError("nothing is planned")
        return self._planned.plans[-1]

    def forward_and_backward(self) -> Tensor:
        """Run both passes and return the loss; a compiled step updates the parameters, too."""
        if self._whole is not None:
            return self._whole(*self.inputs)
        loss: Tensor = self.model(*self.inputs)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Update the parameters, and forget their gradients."""
        if self._whole is None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()

    def step(self) -> Tensor:
        """Train one step; returns the loss before the update."""
        loss = self.forward_and_backward()
        self.update()
        return loss

    def train(self, steps: int = _STEPS) -> Outcome:
        """Train from the same random seed each time, and measure the last step."""
        torch.manual_seed(1)
        losses = [self.step().to("cpu", copy=True) for _ in range(steps - 1)]
        if self.setup.large:
            torch.cuda.empty_cache()  # so that the reserved bytes are those of this step
        with memory_meter(self.model, self.optimizer, self.inputs) as meter:
            losses.append(self.forward_and_backward())
        live, reserved = meter.peak, 0
        if self.setup.large:
            live = torch.cuda.memory_stats()["requested_bytes.all.peak"]
            reserved = torch.cuda.max_memory_reserved()
        values = {f"loss {k}": loss for k, loss in enumerate(losses)} | self._values_after_update()
        host = {name: x.detach().to("cpu", copy=True) for name, x in values.items()}
        device = self.setup.device
        return Outcome(values=host, peak=meter.peak, live=live, reserved=reserved, device=device)

    def _values_after_update(self) -> dict[str, Tensor]:
        """Update the parameters; returns the gradients, and the parameters, buffers and states afterwards."""
        named = list(self.model.named_parameters())
        values = {f"gradient of {name}": p.grad for name, p in named if p.grad is not None}
        self.update()
        values |= self.model.state_dict()
        for name, p in named:
            held = self.optimizer.state[p]
            values |= {f"{key} of {name}": x for key, x in held.items() if isinstance(x, Tensor)}
        values["random state"] = torch.get_rng_state()
        if self.setup.large:
            values["random state of the GPU"] = torch.cuda.get_rng_state()
        return values


def _loss(model: torch.nn.Module, *inputs: Tensor) -> Tensor:
    loss: Tensor = model(*inputs)
    return loss


def difference(one: Outcome, other: Outcome) -> tuple[float, str]:
    """The largest difference among the values that both outcomes have, and the name of that value.

    A difference is relative to the largest number of the value, or to a thousandth of the largest one of its
    kind if that is more: so gradients that are only rounding, such as those of attention's key biases, do not
    count. It is infinite where random states or integers differ, or where numbers are not finite.
    """
    largest = {name: _largest(x) for name, x in other.values.items() if x.is_floating_point()}
    kinds: dict[str, float] = {}
    for name, number in largest.items():
        if math.isfinite(number):
            kinds[_kind(name)] = max(kinds.get(_kind(name), 0.0), number)
    worst = (0.0, "")
    for name in one.values.keys() & other.values.keys():
        a, b = (outcome.values[name].to(one.device) for outcome in (one, other))
        if torch.equal(a, b):
            continue
        far = math.inf
        if a.is_floating_point() and a.shape == b.shape:
            scale = max(largest[name], _LEAST_SCALE * kinds.get(_kind(name), 0.0))
            apart = float((a.double() - b.double()).abs().max() / scale)
            far = apart if math.isfinite(apart) else far
        worst = max(worst, (far, name))
    return worst


def _kind(name: str) -> str:
    """The words before the last: "gradient of" for "gradient of weight"; empty for parameters and buffers."""
    return name.rpartition(" ")[0]


def _largest(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def forget_all() -> None:
    """Free what earlier checks left: captured graphs, and the allocator's cache."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def setup_on(device: torch.device) -> Setup:
    """The setup for a device.

    On a GPU, the bytes that libraries keep after their first calls, beyond the workspaces that plans count,
    are measured, and reserved.
    """
    setup = Setup(device=device)
    if not setup.large:
        return setup
    for network in NETWORKS:
        Loop(network, setup, 1).step()
    forget_all()
    return replace(setup, reserve=max(0, torch.cuda.memory_allocated(device) - library_bytes(device)))

"""A loop of ``accelerate``: a model that is enabled before or after ``prepare`` trains to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

accelerate = pytest.importorskip("accelerate")

from checkmate_torch import enable, memory_meter, planned_training  # noqa: E402

BUDGET = "75%"


@pytest.fixture(autouse=True)
def _fresh_accelerator() -> Iterator[None]:
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


class Loop:
    """Trains a language model for some epochs of four batches; gradients of two batches are accumulated."""

    def __init__(self, model: nn.Module, data: Any, precision: str) -> None:
        torch.manual_seed(0)
        self.accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.losses: list[float] = []
        self.peak = 0

    def epoch(self) -> None:
        for batch in self.loader:
            with self.accelerator.accumulate(self.model):
                self.step(batch)
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        if len(self.losses) != 7:  # the last of two epochs, with gradients held
            loss = self.passes(batch)
        else:
            with memory_meter(self.model, self.optimizer.optimizer, batch) as meter:
                loss = self.passes(batch)
            self.peak = meter.peak
        self.losses.append(loss.item())

    def passes(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.accelerator.backward(loss)
        return loss.detach()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("first", ["enable", "prepare"])
def test_trains_to_the_same_bits_within_the_budget(
    precision: str,
    first: str,
    tokens: Callable[[], Any],
    language_model: Callable[[], nn.Module],
    settings: dict[str, Any],
) -> None:
    plain, planned = language_model(), language_model()
    if precision == "bf16":  # eager PyTorch adds gradients up in another order than AOTAutograd's trace
        plain.compile(backend="aot_eager", fullgraph=True)
    reference = Loop(plain, tokens(), precision)
    if first == "enable":
        training = enable(planned, BUDGET, optimizer=torch.optim.AdamW(planned.parameters()), **settings)
    loop = Loop(planned, tokens(), precision)
    if first == "prepare":
        training = enable(loop.model, BUDGET, optimizer=loop.optimizer, **settings)
    for each in (reference, loop):
        torch.manual_seed(1)
        each.epoch()
        each.epoch()
    assert loop.losses == reference.losses
    assert same(planned, plain)
    assert 0 < loop.peak <= max(plan.solution.problem.budget for plan in training.plans)


def test_saves_loads_and_resumes(
    tokens: Callable[[], Any],
    language_model: Callable[[], nn.Module],
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    models = [language_model() for _ in range(3)]
    plain, planned, resumed = (Loop(model, tokens(), "no") for model in models)
    for loop in (planned, resumed):
        enable(loop.model, BUDGET, optimizer=loop.optimizer, **settings)
    for loop in (plain, planned):
        torch.manual_seed(1)
        loop.epoch()
        if loop is planned:
            loop.accelerator.save_state(tmp_path)
        loop.epoch()
    resumed.accelerator.load_state(tmp_path)  # random states included
    resumed.epoch()
    assert same(models[1], models[0])
    assert same(models[2], models[0])
    assert resumed.losses == planned.losses[4:]
    inside = planned.accelerator.unwrap_model(planned.model)
    assert inside is models[1]
    assert planned_training(inside) is not None

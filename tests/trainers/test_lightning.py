"""Lightning's Trainer: ``fit`` with the callback trains to the same bits as without, within the budget."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from checkmate import UnsupportedModelError
from checkmate_torch import enable, memory_meter, planned_training
from checkmate_torch.callbacks.lightning import CheckmateCallback
from zoo.small_torch import perceptron

BUDGET = "80%"

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # Lightning calls what PyTorch will drop
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


class Net(LightningModule):
    """A network with its loss; its losses are listed."""

    def __init__(self, *, manual: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = perceptron(32, *[64] * 8, 8, dropout=dropout)
        self.losses: list[float] = []
        self.automatic_optimization = not manual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0]).float(), batch[1])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        self.log("validated", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2, eps=1e-4)  # not 0 in float16


class WithoutForward(Net):
    """The same network; ``training_step`` calls the child that has parameters."""

    forward = LightningModule.forward

    def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]).float(), batch[1])


class Meter(Callback):
    """Measures the passes of the fourth batch."""

    peak = 0

    def on_train_batch_start(self, trainer: Trainer, module: Net, batch: Any, index: int) -> None:
        if index == 3:
            self.meter = memory_meter(module, trainer.optimizers, batch)
            self.entered = self.meter.__enter__()

    def on_after_backward(self, trainer: Trainer, module: Net) -> None:
        if len(module.losses) == 4:
            self.meter.__exit__(None, None, None)
            self.peak = self.entered.peak


def fitted(module: Net, *callbacks: Callback, folder: Path, steps: int = 4, **arguments: Any) -> Trainer:
    """The trainer that has trained the module."""
    resume = arguments.pop("ckpt_path", None)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu", max_steps=steps, callbacks=list(callbacks), default_root_dir=folder,
        enable_checkpointing=False, **quiet, **arguments,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(1024, 32, generator=generator), torch.randint(8, (1024,), generator=generator)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=256)
    seed_everything(1, verbose=False)
    trainer.fit(module, loader, loader, ckpt_path=resume)
    return trainer


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages of the callback."""
    return [each.getMessage() for each in caplog.records if each.name.startswith("checkmate_torch.callbacks")]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-true"])
def test_trains_to_the_same_bits_within_the_budget(
    precision: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    plain = Net()
    if precision != "32-true":  # eager PyTorch rounds elsewhere: AOTAutograd's own trace is the measure
        plain.compile(backend="aot_eager", fullgraph=True)
    reference = fitted(plain, folder=tmp_path, precision=precision)
    for planned in (Net(), WithoutForward(), Net(manual=True)):
        callback, meter = CheckmateCallback(BUDGET, **settings), Meter()
        trainer = fitted(planned, callback, meter, folder=tmp_path, precision=precision)
        assert planned.losses == plain.losses
        assert same(planned, plain)
        assert trainer.callback_metrics == reference.callback_metrics
        assert 0 < meter.peak <= max(plan.solution.problem.budget for plan in callback.training.plans)
        assert planned_training(planned) is None


def test_saves_loads_and_resumes(settings: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "half.ckpt"
    plain, half, resumed = (Net(dropout=0) for _ in range(3))  # Lightning does not restore the random state
    fitted(plain, folder=tmp_path, steps=8)
    training = enable(half, BUDGET, **settings)  # by hand: Adam is noticed at its first step
    fitted(half, folder=tmp_path).save_checkpoint(file)
    assert training.plans
    loaded = Net.load_from_checkpoint(file, dropout=0)
    assert same(loaded, half)
    assert planned_training(loaded) is None
    callback = CheckmateCallback(BUDGET, **settings)
    fitted(resumed, callback, folder=tmp_path, steps=8, ckpt_path=file)
    assert callback.training.plans
    assert half.losses + resumed.losses == plain.losses
    assert same(resumed, plain)


def test_the_callback_reports_at_the_end(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = CheckmateCallback(BUDGET, **settings)
    with caplog.at_level(logging.INFO, "checkmate_torch.callbacks"):
        fitted(Net(), callback, folder=tmp_path)
    assert logged(caplog) == [str(callback.training.report())]


def test_a_module_that_is_not_called_is_warned_of(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = WithoutForward()
    module.spare = nn.Linear(2, 2)
    with pytest.raises(UnsupportedModelError, match=r"net, spare.*module="):
        fitted(module, CheckmateCallback(BUDGET, **settings), folder=tmp_path)
    fitted(module, CheckmateCallback(BUDGET, module="spare", **settings), folder=tmp_path)
    assert caplog.text.count("Adam has stepped parameters of Linear, but no call") == 1
    callback = CheckmateCallback(BUDGET, module="net", **settings)
    fitted(module, callback, folder=tmp_path)
    assert callback.training.plans


def test_an_exception_ends_the_planning(settings: dict[str, Any], tmp_path: Path) -> None:
    class Fails(Callback):
        def on_train_batch_end(self, *state: Any) -> None:
            raise LookupError

    module = Net()
    with pytest.raises(LookupError):
        fitted(module, CheckmateCallback(BUDGET, **settings), Fails(), folder=tmp_path)
    assert planned_training(module) is None


def test_a_strategy_that_wraps_the_module_plans_its_child(settings: dict[str, Any], tmp_path: Path) -> None:
    callback = CheckmateCallback(BUDGET, **settings)
    plain, planned = Net(), Net()
    try:
        fitted(plain, folder=tmp_path, strategy="ddp", devices=1)
        fitted(planned, callback, folder=tmp_path, strategy="ddp", devices=1)
    finally:
        torch.distributed.destroy_process_group()
    assert planned.losses == plain.losses
    assert same(planned, plain)
    assert 0 < len(callback.training.plans) <= 2  # without and with gradients held

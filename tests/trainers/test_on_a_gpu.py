"""The trainers on a GPU: the same bits as without a plan, within the budget."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkmate_torch import enable

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
lightning = pytest.importorskip("lightning.pytorch")

from checkmate_torch.callbacks import lightning as for_lightning  # noqa: E402
from checkmate_torch.callbacks import transformers as for_transformers  # noqa: E402

BUDGET = "60%"
STEPS = 4
SIZES = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256, "attn_implementation": "eager"}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries, about this machine
]


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that give the same bits twice; no earlier state of a trainer."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens; 16 sentences are a batch whose activations outweigh the libraries' workspaces."""

    def __len__(self) -> int:
        return 16 * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(3, 64, (256,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class Meter:
    """Losses, and the requested bytes of CUDA's allocator in the passes of the last step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.peak = 0

    def passes(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        torch.cuda.reset_peak_memory_stats()
        loss = run()
        self.peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        self.losses.append(loss.item())
        return loss


def by_hugging_face(model: nn.Module, folder: Path, settings: dict[str, Any] | None, bf16: bool) -> Any:
    meter = Meter()

    class Trainer(transformers.Trainer):
        def training_step(self, *args: Any) -> torch.Tensor:
            return meter.passes(lambda: super(Trainer, self).training_step(*args))

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=16, bf16=bf16, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    callback = for_transformers.CheckmateCallback(BUDGET, loss_bytes=0, **settings) if settings else None
    Trainer(model, arguments, train_dataset=Sentences(), callbacks=[callback] if callback else []).train()
    return meter, callback.training if callback else None


def by_accelerate(model: nn.Module, folder: Path, settings: dict[str, Any] | None, bf16: bool) -> Any:
    meter, accelerator = Meter(), accelerate.Accelerator(mixed_precision="bf16" if bf16 else "no")
    loader = torch.utils.data.DataLoader(Sentences(), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    training = enable(model, BUDGET, optimizer=optimizer, loss_bytes=0, **settings) if settings else None
    torch.manual_seed(0)

    def passes(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch).loss
        accelerator.backward(loss)
        return loss.detach()

    for batch in loader:
        meter.passes(lambda batch=batch: passes(batch))
        optimizer.step()
        optimizer.zero_grad()
    return meter, training


def by_lightning(model: nn.Module, folder: Path, settings: dict[str, Any] | None, bf16: bool) -> Any:
    meter = Meter()

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.automatic_optimization = model, False

        def forward(self, **batch: torch.Tensor) -> torch.Tensor:
            return self.model(**batch).loss

        def passes(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss = self(**batch)
            self.manual_backward(loss)
            return loss.detach()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            meter.passes(lambda: self.passes(batch))
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    callback = for_lightning.CheckmateCallback(BUDGET, loss_bytes=0, **settings) if settings else None
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_steps=STEPS, precision="bf16-mixed" if bf16 else "32-true",
        callbacks=[callback] if callback else [], default_root_dir=folder, enable_checkpointing=False,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    lightning.seed_everything(1, verbose=False)
    trainer.fit(Net(), torch.utils.data.DataLoader(Sentences(), batch_size=16))
    return meter, callback.training if callback else None


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("train", [by_hugging_face, by_accelerate, by_lightning])
def test_trains_to_the_same_bits_within_the_budget(
    train: Callable[..., Any],
    bf16: bool,
    language_model: Callable[..., nn.Module],
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    plain = language_model(**SIZES)
    if bf16:  # eager PyTorch adds gradients up in another order than AOTAutograd's trace
        plain.compile(backend="aot_eager", fullgraph=True)
    reference, _ = train(plain, tmp_path, None, bf16)
    weights = {name: x.cpu() for name, x in plain.state_dict().items()}
    del plain
    gc.collect()  # the trainer's optimizer: all that is allocated counts

    planned = language_model(**SIZES)
    meter, training = train(planned, tmp_path, settings, bf16)
    assert meter.losses == reference.losses
    assert all(torch.equal(x.cpu(), weights[name]) for name, x in planned.state_dict().items())
    assert meter.peak <= training.plans[-1].solution.problem.budget < reference.peak

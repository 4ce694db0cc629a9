"""Hugging Face's Trainer, with its usual arguments: the same bits as without a plan, within the budget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from checkmate_torch import enable, memory_meter, planned_training  # noqa: E402
from checkmate_torch.callbacks.transformers import CheckmateCallback  # noqa: E402
from checkmate_torch.planning.training import PlannedTraining  # noqa: E402

BUDGET = "75%"

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls what transformers will drop


class MeteredTrainer(transformers.Trainer):
    """Measures the last step's passes: the plans are made, and the optimizer has its state."""

    peak = 0

    def training_step(self, model: nn.Module, inputs: Any, *count: Any) -> torch.Tensor:
        if self.state.global_step < self.state.max_steps - 1:
            return super().training_step(model, inputs, *count)
        with memory_meter(model, self.optimizer.optimizer, inputs) as meter:
            loss = super().training_step(model, inputs, *count)
        self.peak = max(self.peak, meter.peak)
        return loss


@dataclass
class Run:
    trainer: MeteredTrainer
    losses: list[float]
    evaluated: float

    @property
    def weights(self) -> list[torch.Tensor]:
        return [*self.trainer.model.state_dict().values()]

    def equals(self, other: Run) -> bool:
        """Whether all losses and the final weights are equal to the bit."""
        return self.losses == other.losses and self.ends_as(other)

    def ends_as(self, other: Run) -> bool:
        """Whether the final weights are equal to the bit, and their loss."""
        return all(map(torch.equal, self.weights, other.weights)) and self.evaluated == other.evaluated


@dataclass
class Loop:
    """A Trainer's arguments and data; called with a model and callbacks it trains and evaluates."""

    folder: Path
    data: Any
    collator: Any = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def trainer(self, model: nn.Module, *callbacks: object) -> MeteredTrainer:
        arguments = transformers.TrainingArguments(
            **{"output_dir": str(self.folder), "use_cpu": True, "report_to": [], "disable_tqdm": True}
            | {"per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 1, "save_strategy": "no"}
            | self.arguments
        )
        data = {"train_dataset": self.data, "eval_dataset": self.data}
        return MeteredTrainer(model, arguments, self.collator, callbacks=list(callbacks), **data)

    def __call__(self, model: nn.Module, *callbacks: object, resume: Path | None = None) -> Run:
        trainer = self.trainer(model, *callbacks)
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return Run(trainer, losses, trainer.evaluate()["eval_loss"])


@pytest.fixture
def loop(tmp_path: Path, tokens: Callable[..., Any], request: pytest.FixtureRequest) -> Loop:
    arguments = dict(getattr(request, "param", {}))
    if arguments.pop("padded", False):
        return Loop(tmp_path, tokens(even=False), padded, arguments)
    return Loop(tmp_path, tokens(), arguments=arguments)


def padded(sentences: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The sentences at the length of the longest, as a collator with dynamic padding returns them."""
    pad = torch.nn.utils.rnn.pad_sequence
    tokens = pad([each["input_ids"] for each in sentences], batch_first=True, padding_value=2)
    labels = pad([each["labels"] for each in sentences], batch_first=True, padding_value=-100)
    return {"input_ids": tokens, "attention_mask": (labels >= 0).long(), "labels": labels}


def with_adapters(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    return peft.get_peft_model(model, config)


def budget_of(training: PlannedTraining) -> int:
    """Bytes of the budget."""
    return max(plan.solution.problem.budget for plan in training.plans)


@pytest.mark.parametrize(
    ("loop", "change"),
    [
        pytest.param({}, nn.Module.float, id="float32"),
        pytest.param({"gradient_accumulation_steps": 2}, nn.Module.float, id="accumulation"),
        pytest.param({"activation_checkpointing": True}, nn.Module.float, id="checkpointing"),
        pytest.param({}, with_adapters, id="adapters"),
        pytest.param({"padded": True}, nn.Module.float, id="padding"),
        pytest.param({"bf16": True}, nn.Module.float, id="bf16"),
        pytest.param({}, nn.Module.bfloat16, id="bfloat16"),
        pytest.param({}, nn.Module.half, id="float16"),
    ],
    indirect=["loop"],
)
def test_trains_to_the_same_bits_within_the_budget(
    loop: Loop,
    change: Callable[[nn.Module], nn.Module],
    language_model: Callable[[], nn.Module],
    settings: dict[str, Any],
    request: pytest.FixtureRequest,
) -> None:
    plain, planned = change(language_model()), change(language_model())
    # Below float32 eager PyTorch adds gradients up in another order: AOTAutograd's own trace is the measure.
    if "16" in request.node.callspec.id:
        plain.compile(backend="aot_eager", fullgraph=True)
    callback = CheckmateCallback(BUDGET, loss_bytes=0, **settings)
    run = loop(planned, callback)
    assert run.equals(loop(plain))
    assert 0 < run.trainer.peak <= budget_of(callback.training)
    assert planned_training(planned) is None


def test_saves_evaluates_and_resumes(
    loop: Loop, language_model: Callable[[], nn.Module], settings: dict[str, Any], tmp_path: Path
) -> None:
    loop.arguments |= {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    plain = loop(language_model())
    (planned, resumed) = models = (language_model(), language_model())
    whole, half = (enable(model, BUDGET, loss_bytes=0, **settings) for model in models)
    assert loop(planned).equals(plain)
    assert loop(resumed, resume=tmp_path / "checkpoint-2").ends_as(plain)
    assert whole.plans
    assert half.plans
    loaded = type(planned).from_pretrained(tmp_path / "checkpoint-4")
    assert all(map(torch.equal, loaded.state_dict().values(), plain.weights))
    assert planned_training(loaded) is None


def test_the_callback_reports_at_the_end(
    loop: Loop,
    language_model: Callable[[], nn.Module],
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback = CheckmateCallback(BUDGET, loss_bytes=0, **settings)
    with caplog.at_level(logging.INFO, "checkmate_torch.callbacks"):
        loop(language_model(), callback)
    assert caplog.messages == [str(callback.training.report())]

"""TRL's trainers with a tiny Llama, which follow the other loops whose steps vary in their table.

Their libraries are imported where they run.
"""

from __future__ import annotations

import random
import tempfile
from typing import TYPE_CHECKING, Any

import torch

from zoo.habits import varying_batches, varying_models  # noqa: F401 - their loops come before
from zoo.habits.habit import Door
from zoo.habits.varying import STEPS, VARYING, Ended, varying

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, Trainer

__all__ = ["VARYING"]

_WORDS = [f"w{k}" for k in range(250)]


def _tokenizer() -> PreTrainedTokenizerFast:
    """Each word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ("<pad>", "<bos>", "<eos>", "<unk>")
    numbers = {word: k for k, word in enumerate((*special, *_WORDS))}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


def _llama() -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, num_key_value_heads=2, **sizes, **ends))


def _rows(**most: int) -> list[dict[str, str]]:
    """Make eight rows for each step: column → random text; ``most``: column → its largest number of words."""
    draw = random.Random(0)  # imports of libraries may use the common generator

    def text(words: int) -> str:
        return " ".join(draw.choices(_WORDS, k=draw.randint(4, words)))

    return [{name: text(words) for name, words in most.items()} for _ in range(8 * STEPS)]


def _train(
    door: Door, ended: Ended, trainer: Any, config: Any, rows: list[dict[str, str]], **settings: Any
) -> None:
    """Run a trainer of TRL without its gradient checkpointing.

    Args:
        door: the door.
        ended: ends a step.
        trainer: the class.
        config: the class of its arguments.
        rows: the data.
        settings: further settings of both; those of the trainer are ``peft_config`` and ``reward_funcs``.
    """
    from datasets import Dataset
    from transformers import TrainerCallback

    class Habit(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, model: Any, optimizer: Any, **others: Any) -> None:
            door(model, optimizer.optimizer)

        def on_step_end(self, *_: Any, model: Any, **others: Any) -> None:
            ended(model)

    own = {key: settings.pop(key) for key in ("peft_config", "reward_funcs") if key in settings}
    with tempfile.TemporaryDirectory() as folder:
        usual = {"output_dir": folder, "use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True}
        loop = {"max_steps": STEPS, "per_device_train_batch_size": 8, "save_strategy": "no", "seed": 0}
        rates = {"learning_rate": 1e-3, "adam_epsilon": 1e-3}  # as in varies.adamw
        arguments = config(**usual, **loop, **rates, gradient_checkpointing=False, **settings)
        made: Trainer = trainer(
            model=_llama(),
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=_tokenizer(),
            callbacks=[Habit()],
            **own,
        )
        made.train()


@varying("TRL's SFTTrainer, padding to the longest", 0.7)
def sft(door: Door, ended: Ended) -> None:
    from trl import SFTConfig, SFTTrainer

    _train(door, ended, SFTTrainer, SFTConfig, _rows(text=64))


@varying("TRL's DPOTrainer with LoRA", 0.8)
def dpo(door: Door, ended: Ended) -> None:
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    rows = _rows(prompt=32, chosen=32, rejected=32)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    _train(door, ended, DPOTrainer, DPOConfig, rows, peft_config=lora)


@varying("TRL's GRPOTrainer, generation between steps", 0.8)
def grpo(door: Door, ended: Ended) -> None:
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(text.count("1")) for text in completions]

    sizes = {"num_generations": 4, "max_completion_length": 12}
    _train(door, ended, GRPOTrainer, GRPOConfig, _rows(prompt=16), reward_funcs=reward, **sizes)

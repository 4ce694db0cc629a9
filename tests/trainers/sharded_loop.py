"""A rank that ``accelerate launch`` starts with an FSDP2 configuration: a loop of accelerate, then a Trainer.

accelerate takes such a configuration on accelerators only. So on CPUs its type of training is set by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from checkmate_torch import enable, memory_meter
from checkmate_torch.callbacks.transformers import CheckmateCallback

BUDGET = "65%"
SETTINGS: Any = {"cost_model": "flops", "time_limit": 2}
BATCHES, ROWS, LENGTH = 4, 48, 32  # so large that late copies of gloo are below 2 % of the peak


def shards(accelerator: Accelerator) -> Accelerator:
    """Take the configuration of ``accelerate launch``, which the environment holds, on CPUs too."""
    state = accelerator.state
    state._shared_state["distributed_type"] = DistributedType.FSDP
    state._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin()
    return accelerator


def model() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 3, "n_head": 2, "n_positions": LENGTH, "vocab_size": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends))


def sentences() -> list[dict[str, Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    rows = torch.randint(3, 64, (2 * ROWS * BATCHES, LENGTH), generator=numbers)
    return [{"input_ids": row, "labels": row} for row in rows]


def values(module: nn.Module) -> list[Tensor]:
    return [p.to_local().clone() if isinstance(p, DTensor) else p.clone() for p in module.parameters()]


def loop(budget: str | None) -> dict[str, Any]:
    """A loop of accelerate, with clipping; the last step is measured."""
    accelerator = shards(Accelerator(cpu=True))
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(sentences(), batch_size=ROWS)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    training = enable(net, budget, optimizer=optimizer, **SETTINGS) if budget else None
    torch.manual_seed(7)
    seen: dict[str, Any] = {"losses": []}
    for step, batch in enumerate(loader):
        last = step == BATCHES - 1  # planned, and the optimizer has its state
        with memory_meter(net, optimizer.optimizer, batch) if last else nullcontext() as meter:
            loss = net(**batch).loss
            accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen["losses"].append(loss.item())
        del loss
    if training is not None:
        plan = training.plans[-1]
        seen |= {
            "measured": meter.peak,
            "predicted": plan.peak,
            "budget": plan.budget,
            "extra": plan.overhead,
        }
    return {**seen, "values": values(net)}


class OnCPUs(transformers.Trainer):
    """A Trainer whose accelerator shards on CPUs, too."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        shards(self.accelerator)
        self.is_fsdp_enabled = True


def trainer(budget: str | None, folder: Path) -> dict[str, Any]:
    """Hugging Face's Trainer with our callback."""
    where = {"output_dir": str(folder), "use_cpu": True, "report_to": [], "save_strategy": "no"}
    steps = {"per_device_train_batch_size": ROWS, "max_steps": BATCHES, "logging_steps": 1, "seed": 3}
    arguments = transformers.TrainingArguments(**where, **steps, disable_tqdm=True)
    callback = CheckmateCallback(budget, **SETTINGS) if budget else None
    run = OnCPUs(model(), arguments, train_dataset=sentences(), callbacks=[callback] if callback else [])
    run.train()
    seen: dict[str, Any] = {"losses": [row["loss"] for row in run.state.log_history if "loss" in row]}
    if callback is not None:
        plan = callback.training.plans[-1]
        seen |= {"extra": plan.overhead, "kinds": sorted(plan.by_kind)}
    return {**seen, "values": values(run.model)}


def both(train: Callable[..., dict[str, Any]], *others: Any) -> dict[str, Any]:
    """Without and with a budget."""
    plain, planned = train(None, *others), train(BUDGET, *others)
    bits = all(map(torch.equal, plain.pop("values"), planned.pop("values")))
    return {**planned, "same": bits and plain["losses"] == planned["losses"]}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    seen = {"accelerate": both(loop), "trainer": both(trainer, folder)}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

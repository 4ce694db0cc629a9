"""Three plain training steps of an architecture of :mod:`zoo.torch_world`, beside the prediction of ``fit``.

The measured peak is the most live tensor bytes in the whole third step, the update included, by the
allocator's events. With ``train``, the model is also trained within the least peak that was predicted.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import checkmate_torch
from checkmate import CheckmateError
from checkmate_torch.costs.meter import memory_meter
from checkmate_torch.tools.fit.optimizers import named_optimizer
from steps.process import Row, answer
from zoo.torch_world import ARCHITECTURES, Trained

_COST_MODEL = "flops"


def measure(task: Row) -> Row:
    """Predicted and measured bytes of one model and optimizer, in this process.

    Args:
        task: ``network``, ``optimizer``, ``lora``: names of the modules that get adapters, ``train``.
    """
    predicted, cell = _cell(task, workspaces=None), _cell(task, workspaces=True)
    facts = {
        "predicted": predicted.plain_peak,
        "with_workspaces": cell.plain_peak,
        "update": cell.update_peak,
        "least": cell.least_peak,
        "measured": _trained(*_made(task)),
    }
    if task["train"]:
        try:
            facts["least_measured"] = _trained(*_made(task), budget=cell.least_peak)
        except CheckmateError as error:
            facts["least_failed"] = f"{type(error).__name__}: {error}"[:200]
    return facts


def _cell(task: Row, *, workspaces: bool | None) -> checkmate_torch.Fit:
    """The prediction, with workspaces measured or without."""
    (cell,) = checkmate_torch.fit(
        lambda _: _made(task)[:2],
        optimizer=task["optimizer"],
        cost_model=_COST_MODEL,
        workspaces=workspaces,
        cache=False,
        time_limit=2.0 if task["train"] else 0.2,
    )
    return cell


def _made(task: Row) -> tuple[nn.Module, dict[str, Any], Optimizer]:
    """The model in training mode, its inputs, and its optimizer."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily():  # the networks are small
        torch.manual_seed(0)
        module, inputs, loss = ARCHITECTURES[task["network"]].make()
        if task["lora"]:
            import peft

            module = peft.get_peft_model(module, peft.LoraConfig(r=8, target_modules=task["lora"]))
        model = Trained(module, loss).train()
        trained = [p for p in model.parameters() if p.requires_grad]
        return model, dict(inputs), named_optimizer(task["optimizer"])(trained)


def _trained(model: nn.Module, inputs: dict[str, Any], optimizer: Optimizer, budget: int = 0) -> int:
    """The peak of the third step, in bytes; 0 as the budget = plain."""
    if budget:
        checkmate_torch.enable(model, budget, optimizer=optimizer, cost_model=_COST_MODEL, cache=False)

    def step() -> None:
        model(**inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    with memory_meter(model, optimizer, inputs) as meter:
        step()
    return meter.peak


if __name__ == "__main__":
    logging.getLogger("checkmate_torch").propagate = False
    warnings.simplefilter("ignore")
    answer(measure)

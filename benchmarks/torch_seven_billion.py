"""Llama-7B planned without running: peaks of the plain step and the least budget of a whole step.

Run with ``transformers`` installed: ``python benchmarks/torch_seven_billion.py``. It prints the table of
``docs/how-to/train-a-whole-step.md``. The model is on the device ``meta``, in bfloat16, with its published
configuration and one sequence of 512 tokens; costs come from the roofline of an H100.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adafactor, AdamW, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

import checkmate
import checkmate_torch
from checkmate.heuristics import PlainOrder
from checkmate.report import Kind

TOKENS = 512
TIME_LIMIT_S = 20.0
MARGIN = 1.02


def row(model: nn.Module, optimizer: Optimizer) -> str:
    """One line of the table."""
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    traced = checkmate_torch.trace_step(model, loss, optimizer, (tokens,), cost_model="roofline-H100-80GB")
    plain = PlainOrder(order=traced.step.plain).peak(traced.graph)
    least = plain
    try:
        checkmate.solve(traced.graph, 1, time_limit=TIME_LIMIT_S)
    except checkmate.InfeasibleBudgetError as error:
        least = error.minimum or plain
    solution = checkmate.solve(traced.graph, int(MARGIN * least), time_limit=TIME_LIMIT_S)
    parameters = sum(p.nbytes for p in model.parameters())
    sizes = (parameters, traced.account.fixed[Kind.OPTIMIZER], plain, least)
    columns = (type(optimizer).__name__, *(f"{size / 2**30:.1f}" for size in sizes))
    return f"| {' | '.join(columns)} | {solution.overhead:.1%} |"


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Of the next tokens."""
    found: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return found


def main() -> None:
    """Print the table."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(use_cache=False)).to(torch.bfloat16)
    print("| optimizer | parameters | state | plain step | least found | extra time at 2 % above the least |")
    print("|---|---|---|---|---|---|")
    for make in (AdamW, Adafactor):
        print(row(model, make(model.parameters())))


if __name__ == "__main__":
    main()

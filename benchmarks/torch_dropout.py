"""Gradients under dropout: Checkmate's, and those of PyTorch's own ``activation_memory_budget``.

A GPT-2-like decoder with dropout takes one step from the same seed three times: plainly, within a budget of
Checkmate's (a share of the plain peak), and under PyTorch's partitioner at a share of what it would save. The
error is |g − g'| / |g'| over all parameters together, g' being plain PyTorch's. Each way is also measured
without dropout, where nothing is drawn. The loss says nothing: a mask drawn anew in the backward pass changes
gradients alone.

    python benchmarks/torch_dropout.py [--output FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_step import Row, gradient_error, machine, torch_module

import checkmate
import checkmate_torch
from checkmate_torch.meter import memory_meter
from checkmate_torch.zoo import Case, gpt2

SIZES = {"layers": 2, "width": 64, "heads": 4, "length": 64, "batch": 8, "vocabulary": 256}
BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
LEAST = 0.0
"""Of Checkmate's budgets: the least that is known to work."""


def main() -> None:
    """Measure, print the table, write it beside the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    folder = parser.parse_args().output
    about = machine()
    rows = list(measured())
    lines = [", ".join(f"{key}: {value}" for key, value in about.items()), "", *table(rows)]
    print("\n".join(lines))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "torch_dropout.txt").write_text("\n".join(lines) + "\n")
    (folder / "torch_dropout.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def measured() -> Iterator[Row]:
    """One row for each method, budget and probability of dropout."""
    for dropout in (0.2, 0.0):
        plain = fresh(dropout)
        peak, loss = step(plain, plain.module)
        for budget in BUDGETS:
            for method, prepare in (("checkmate", ours), ("torch", theirs)):
                row: Row = {"method": method, "budget": budget, "dropout": dropout}
                case = fresh(dropout)
                try:
                    mine = step(case, prepare(case, budget, peak))
                    row["gradient_error"] = gradient_error(case.module, plain.module)
                    row |= {"peak_share": mine[0] / peak, "loss_equal": mine[1] == loss}
                except checkmate.InfeasibleBudgetError:
                    row["error"] = "infeasible"
                torch._dynamo.reset()
                yield row


def fresh(dropout: float) -> Case:
    """The network with the same weights, whatever was drawn before."""
    return gpt2(dropout=dropout, **SIZES)


def step(case: Case, module: Any) -> tuple[int, float]:
    """Peak bytes and loss of the second of two equal steps; its gradients stay."""
    for run in ("plans", "is measured"):
        torch.manual_seed(7)
        for parameter in case.module.parameters():
            parameter.grad = None
        if run == "plans":
            module(*case.inputs).backward()
    with memory_meter(case.module, case.inputs) as meter:
        loss = module(*case.inputs)
        loss.backward()
    return meter.peak, float(loss)


def ours(case: Case, budget: float, peak: int) -> Any:
    """Checkmate at a share of the plain step's peak."""
    compiled = partial(checkmate_torch.compile, case.module, loss_bytes=0, time_limit=3.0)
    if budget != LEAST:
        return compiled(int(budget * peak))
    try:
        compiled(1)(*case.inputs)
    except checkmate.InfeasibleBudgetError as error:
        return compiled(error.minimum or 1)
    raise RuntimeError("a budget of one byte was met")


def theirs(case: Case, budget: float, _peak: int) -> Any:
    """PyTorch's partitioner at a share of what it would save."""
    return torch_module(case.module, budget, decomposed=False)


def table(rows: list[Row]) -> Iterator[str]:
    """Budgets down, methods across: error of the gradients, and peak as a share of plain PyTorch's."""
    ways = [(dropout, method) for dropout in (0.2, 0.0) for method in ("checkmate", "torch")]
    yield "error of gradients (peak, share of plain); for Checkmate a budget is a share of the plain peak,"
    yield "for PyTorch a share of what would be saved"
    yield "budget  " + "".join(f"{method}, p={dropout}".rjust(22) for dropout, method in ways)
    for budget in BUDGETS:
        cells = []
        for way in ways:
            row = next(r for r in rows if (r["dropout"], r["method"]) == way and r["budget"] == budget)
            text = row.get("error") or f"{row['gradient_error']:.0e} ({row['peak_share']:.0%})"
            cells.append(text.rjust(22))
        yield f"{budget:6.1f}  " + "".join(cells)
    yield "Checkmate's 0.0 is the least budget that is known to work."


if __name__ == "__main__":
    main()

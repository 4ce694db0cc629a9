"""What our executor itself costs: a step at a budget of 100 %, where nothing need be recomputed.

Three ways to run the same step, in turn in one process, so that what else the machine does hits all alike:
eager PyTorch, ``torch.compile(backend="aot_eager")``, and ``checkmate_torch.compile`` with ``budget="100%"``.
Extra time is the median of the ratios of neighbours. Run it on a machine that is otherwise idle:

    python benchmarks/torch_overhead.py [--models mlp,gpt2] [--seconds 20] [-o torch_overhead.json]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch_step import MODELS, Row, forget_earlier_runs, machine, timed

import checkmate_torch
from checkmate_torch.zoo import CASES, Case

WAYS = ("eager", "aot_eager", "checkmate")


def main() -> None:
    """Measure, print the table, write it and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=20.0, help="for each network")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    forget_earlier_runs()
    about = machine()
    rows = []
    for row in measured(arguments.models.split(","), arguments.seconds):
        rows.append(row)
        print(line(row), flush=True)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        facts = ", ".join(f"{key}: {value}" for key, value in about.items())
        text = "\n".join([facts, "", *map(line, rows)])
        arguments.output.with_suffix(".txt").write_text(text + "\n")


def measured(models: list[str], seconds: float) -> Iterator[Row]:
    """One row for each network."""
    for model in models:
        case = CASES[model]()
        ways = [way_to_run(case, way) for way in WAYS]
        for step in ways:
            step()
        taken = dict(zip(WAYS, timed(*ways, spend_s=seconds), strict=True))
        row: Row = {"model": model, "steps": len(taken["eager"])}
        row["step_s"] = {way: statistics.median(mine) for way, mine in taken.items()}
        for base in ("eager", "aot_eager"):
            ratios = [ours / theirs for ours, theirs in zip(taken["checkmate"], taken[base], strict=True)]
            row[f"over_{base}"] = statistics.median(ratios) - 1
        yield row


def way_to_run(case: Case, way: str) -> Any:
    """A step of a copy of the network, as a function without arguments."""
    module = copy.deepcopy(case.module)
    run: Any = module
    if way == "aot_eager":
        run = torch.compile(module, backend="aot_eager", fullgraph=True)
    elif way == "checkmate":
        run = checkmate_torch.compile(module, "100%")

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        case.loss(run(*case.inputs)).backward()  # type: ignore[no-untyped-call]

    return step


def line(row: Row) -> str:
    """A row for people."""
    steps = "  ".join(f"{way} {1000 * row['step_s'][way]:8.2f} ms" for way in WAYS)
    over = f"{row['over_aot_eager']:+.1%} over aot_eager, {row['over_eager']:+.1%} over eager"
    return f"{row['model']:<10} {steps}   checkmate {over} ({row['steps']} steps)"


if __name__ == "__main__":
    main()

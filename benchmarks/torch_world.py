"""Checkmate on other people's models and training loops, the tables of docs/results/torch-world.md.

    python benchmarks/torch_world.py                  # all, in hours; results in benchmarks/results
    python benchmarks/torch_world.py torch-habits     # one of them; others are torch-world, torch-varies
    python benchmarks/torch_world.py --time           # profiled costs and timed steps, on an idle machine
    python benchmarks/torch_world.py --quick -o DIR   # a few rows, somewhere else

It needs transformers, timm, diffusers, torch_geometric and trl; ``nox -s world`` makes an environment that
has them. The same command resumes an interrupted run. Other options are those of ``evaluate.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import evaluate
from evaluation.torch_world import HABITS, VARIES, WORLD, world_tasks


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    words = [word for word in arguments if word != "--time"]
    timed = len(words) < len(arguments)
    world = replace(WORLD, tasks=partial(world_tasks, time=True), alone=True) if timed else WORLD
    where = [] if {"-o", "--output", "--quick"} & {*words} else ["-o", str(evaluate.RESULTS)]
    return evaluate.main([*words, *where], {one.name: one for one in (world, HABITS, VARIES)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Trains in a process whose allocator has a limit: ``python limited_step.py BUDGET``; 0 = stock TensorFlow.

The limit is the environment's, TF_CPU_BFC_MEM_LIMIT_IN_MB. Writes the losses.
"""

from __future__ import annotations

import sys

import tensorflow as tf

import checkmate.tf2
from zoo.small_keras import Case, unet


def network() -> Case:
    """A network that needs 75 MiB, most of it for activations and workspaces."""
    return unet(image=64, batch=16, width=8)


def main(budget: int) -> None:
    """Run three steps; by heuristics, because the search would compile first."""
    case = network()
    step = tf.function(case.step)
    if budget:
        step = checkmate.tf2.function(case.step, budget=budget, solver="heuristics")
    sys.stdout.write(" ".join(str(float(step(*case.batch))) for _ in range(3)))


if __name__ == "__main__":
    main(int(sys.argv[1]))

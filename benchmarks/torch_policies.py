"""Recomputation policies that ``checkmate judge`` predicts, executed: docs/results/torch-policies.md.

    python benchmarks/torch_policies.py                  # half an hour; results in benchmarks/results
    python benchmarks/torch_policies.py --quick -o DIR   # two models, somewhere else

It needs transformers, timm and diffusers, which ``nox -s world --install-only`` installs. The same command
resumes an interrupted run. Other options are those of ``evaluate.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import evaluate
from evaluation.torch_policies import EXPERIMENT


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    where = [] if {"-o", "--output", "--quick"} & {*arguments} else ["-o", str(evaluate.RESULTS)]
    return evaluate.main([*arguments, *where], {EXPERIMENT.name: EXPERIMENT})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

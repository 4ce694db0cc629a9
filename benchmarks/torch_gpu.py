"""Networks of transformers and timm at their published sizes on a GPU: docs/results/torch-gpu.md.

    python benchmarks/torch_gpu.py            # about a minute for each network; results in benchmarks/results
    python benchmarks/torch_gpu.py --quick    # no results compared; whole steps with and without a CUDA graph

It needs a GPU, transformers and timm. The same command resumes an interrupted run. Other options are those of
``evaluate.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import evaluate
from evaluation.torch_gpu import EXPERIMENT


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    where = [] if {"-o", "--output", "--quick"} & {*arguments} else ["-o", str(evaluate.RESULTS)]
    return evaluate.main([*arguments, *where], {EXPERIMENT.name: EXPERIMENT})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

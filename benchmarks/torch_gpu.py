"""Networks of transformers and timm at their published sizes on a GPU: docs/results/torch-gpu.md.

    python benchmarks/torch_gpu.py            # two minutes for each network; results in benchmarks/results
    python benchmarks/torch_gpu.py --quick    # at most eight minutes on one H100: what has a goal comes first
    python benchmarks/torch_gpu.py --quick --seconds 900

A quick run compares no results. It measures the usual batches and batches of 8: within the peak of the
library's own checkpoints, at 100 %, with and without masks that mask nothing, and whole steps with and
without a CUDA graph. It prints each figure beside its goal, says what it skipped, and records what the
allocator did in a step, and the times of the ops, in ``torch-gpu-recorded.json``.

It needs a GPU, transformers and timm. The same command resumes an interrupted run. Other options are those of
``evaluate.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import evaluate
from evaluation.results import read_results
from evaluation.torch_gpu import EXPERIMENT, goals, recorded, within, without_recorded
from results_file import Results, write_results

QUICK_S = 450.0
"""Seconds of a quick run; starts and the ends of processes come on top."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("-o", "--output", type=Path)
    own, _ = parser.parse_known_args(arguments)
    quick = "--quick" in arguments
    folder = own.output or (Path("evaluation-quick") if quick else evaluate.RESULTS)
    rest = _without(arguments, "--seconds")
    if quick or own.seconds is not None:
        within(QUICK_S if own.seconds is None else own.seconds)
    where = [] if own.output else ["-o", str(folder)]
    code = evaluate.main([*rest, *where], {EXPERIMENT.name: EXPERIMENT})
    file = folder / f"{EXPERIMENT.name}.json"
    if quick and file.exists():
        results = read_results(file)
        print(f"\n{goals(results)}\n")
        _keep(recorded(results), folder / f"{EXPERIMENT.name}-recorded.json", [*results.sessions])
        write_results(file, without_recorded(results))
    return code


def _keep(rows: list[dict[str, Any]], file: Path, sessions: list[dict[str, Any]]) -> None:
    """Add rows to a file of recorded steps; those of earlier runs stay unless they were recorded again."""
    if not rows:
        return
    before = msgspec.json.decode(file.read_bytes(), type=Results).rows if file.exists() else []
    kept = {(row["network"], row["n"], row["way"]): row for row in [*before, *rows]}
    write_results(file, Results(sessions=sessions, rows=[*kept.values()]))


def _without(arguments: Sequence[str], option: str) -> list[str]:
    """The arguments without an option and its value."""
    kept = [*arguments]
    if option in kept:
        k = kept.index(option)
        del kept[k : k + 2]
    return [x for x in kept if not x.startswith(f"{option}=")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

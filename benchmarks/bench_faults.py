"""Thousands of deliberate faults, made from a seed; none may do harm.

    python benchmarks/bench_faults.py                                       # all of them, under ten minutes
    python benchmarks/bench_faults.py --only kills --share 0.1 --seed 1     # a tenth of one class
    python benchmarks/bench_faults.py -o benchmarks/results/faults.json     # the committed results

Prints a table of class, tried, failed; then each fault that did harm, and the harm. Exit code 1: a fault did
harm. Linux only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from faults.classes import CLASSES
from faults.fault import FaultClass, harm
from faults.results import Failed, Results, Row
from machine import session
from results_file import write_results

_AT_ONCE = 2


def main(arguments: Sequence[str]) -> int:
    """Run the faults; returns the exit code."""
    asked = _parser().parse_args(arguments)
    results = Results([session("benchmarks/bench_faults.py", arguments, [asked.seed])], [])
    for kind in CLASSES:
        if asked.only in kind.name:
            results.rows.append(_row(kind, asked.seed, asked.share))
            row = results.rows[-1]
            print(
                f"{row.tried:>6} tried {len(row.failed):>4} failed {row.seconds:>7.1f} s  {row.name}",
                flush=True,
            )
    print(f"{sum(row.tried for row in results.rows):>6} tried in all, seed {asked.seed}")
    failed = [fault for row in results.rows for fault in row.failed]
    for fault in failed:
        print(f"\n{fault.about}\n{fault.harm}")
    if asked.output:
        write_results(asked.output, results)
    return 1 if failed else 0


def _row(kind: FaultClass, seed: int, share: float) -> Row:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_AT_ONCE) as several:
        count = max(1, round(share * kind.count))
        faults = list(kind.make(Random(f"{kind.name} {seed}"), count, Path(folder)))
        harms = (several.map if kind.apart else map)(harm, faults)
        failed = [Failed(fault.about, said) for fault, said in zip(faults, harms, strict=True) if said]
    return Row(kind.name, kind.must, len(faults), failed, round(time.monotonic() - started, 1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    say = parser.add_argument
    say("--only", default="", metavar="WORD", help="classes whose name has this word")
    say("--share", type=float, default=1.0, help="of the faults of each class; default: all")
    say("--seed", type=int, default=0, help="of the faults")
    say("-o", "--output", type=Path, help="JSON file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

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
from typing import Any

import msgspec

from faults import CLASSES
from faults.fault import FaultClass, harm
from machine import session
from pages import conditions, table
from results_file import write_results

_AT_ONCE = 2


class Failed(msgspec.Struct):
    """A fault that did harm, and the harm."""

    about: str
    harm: str


class Row(msgspec.Struct):
    """The faults of a class, the condition that must hold after each, and the seconds of all of them."""

    name: str
    must: str
    tried: int
    failed: list[Failed]
    seconds: float


class Results(msgspec.Struct):
    """A run: its conditions and its rows."""

    sessions: list[dict[str, Any]]
    rows: list[Row]


def main(arguments: Sequence[str]) -> int:
    """Run the faults; returns the exit code."""
    asked = _parser().parse_args(arguments)
    results = Results([session("benchmarks/bench_faults.py", arguments, [asked.seed])], [])
    for kind in CLASSES:
        if asked.only in kind.name:
            results.rows.append(row := _row(kind, asked.seed, asked.share))
            said = f"{row.tried:>6} tried {len(row.failed):>4} failed {row.seconds:>7.1f} s  {row.name}"
            print(said, flush=True)
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
        faults = list(kind.faults(max(1, round(share * kind.count)), Path(folder), seed))
        harms = (several.map if kind.apart else map)(harm, faults)
        failed = [Failed(fault.about, said) for fault, said in zip(faults, harms, strict=True) if said]
    return Row(kind.name, kind.must, len(faults), failed, round(time.monotonic() - started, 1))


def markdown(file: Path) -> str:
    """The table, and the conditions of the run."""
    results = msgspec.json.decode(file.read_bytes(), type=Results)
    rows = [(f"{row.name}: {row.must}", row.tried, len(row.failed)) for row in results.rows]
    total = ("all", sum(tried for _, tried, _ in rows), sum(failed for *_, failed in rows))
    head = ("fault: condition that must hold after it", "tried", "failed")
    return f"{table(head, [*rows, total])}\n\n{conditions(results.sessions)}"


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

"""The command line: chooses slices, runs each in a process, prints rows and a table, and writes JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from checkmate_torch.ops.device import machine_of
from checkmate_torch.releases import check_installed
from checkmate_torch.selfcheck.answers import LATE, Answer, line_of, table_of
from checkmate_torch.selfcheck.slices import END, SLICES, encoded, names_of, rows_from_process, rows_of

__all__ = ["main"]

_WEIGHTS = {"bits": 4, "truth": 6, "tools": 1}
_GRACE_S = 60.0
"""Extra seconds for each slice: to start, and to finish a check that began within the slice's time."""
_PACKAGES = ("checkmate-core", "checkmate-solvers", "checkmate-torch", "triton", "numpy")


def main(
    arguments: Sequence[str] | None = None, *, program: str = "python -m checkmate_torch.selfcheck"
) -> int:
    """Run the command line.

    Args:
        arguments: the arguments after the program's name; None = this process's arguments.
        program: its name in the help text.

    Returns:
        0 if no check failed and at least one passed, else 1; or 2 if no check has the text of ``--match``.
    """
    chosen = _parser(program).parse_args(arguments)
    check_installed()
    device = torch.device(chosen.device)
    if chosen.rows is not None:
        for row in rows_of(chosen.only[0], device, chosen.rows, chosen.match):
            _say(encoded(row))
        _say(END)
        return 0
    names = [name for part in chosen.only for name in names_of(part, device)]
    if not any(chosen.match in name for name in names):
        _say("\n  ".join([f"no check has {chosen.match!r} in its name; the checks are", *names]))
        return 2
    return _report(chosen, _machine(device))


def _report(chosen: argparse.Namespace, machine: Mapping[str, object]) -> int:
    """Run the chosen checks, print and write what they found; returns the exit status."""
    _say(", ".join(f"{name} {value}" for name, value in machine.items() if value))
    rows = _all_rows(chosen)
    _say(f"\n{table_of(rows)}")
    if chosen.output is not None:
        found = {"format": 1, "machine": machine, "rows": [asdict(row) for row in rows]}
        chosen.output.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")
        _say(f"all rows, with tracebacks: {chosen.output}")
    failed = sum(row.passed is False for row in rows)
    passed = sum(row.passed is True for row in rows)
    _say(f"{failed} checks failed" if failed else f"{passed} checks passed, none failed")
    return 0 if passed and not failed else 1


def _all_rows(chosen: argparse.Namespace) -> list[Answer]:
    """Run the chosen slices and print each row; later slices share the time that a slice leaves."""
    end = time.monotonic() + 60 * chosen.minutes - _GRACE_S
    rows: list[Answer] = []
    left = list(chosen.only)
    while left:
        share = _WEIGHTS[left[0]] / sum(_WEIGHTS[name] for name in left)
        seconds = max(5.0, share * (end - time.monotonic()))
        name = left.pop(0)
        asked = ["--only", name, "--device", chosen.device, "--match", chosen.match, "--rows", str(seconds)]
        for row in rows_from_process(name, asked, seconds + _GRACE_S):
            rows.append(row)
            if row.verdict != LATE:
                _say(line_of(row))
    return rows


def _machine(device: torch.device) -> dict[str, Any]:
    """The facts that the rows depend on: device, versions, day."""
    facts: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), **machine_of(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"memory": properties.total_memory, "capability": f"{properties.major}.{properties.minor}"}
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    facts |= {"system": f"{platform.system()} {platform.machine()}", "python": platform.python_version()}
    return facts | {name: _version(name) for name in _PACKAGES}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Check Checkmate on this machine: bits, peaks, tools.",
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default, help="default: %(default)s")
    parser.add_argument("--only", type=_slices, default=list(SLICES), help=f"of {','.join(SLICES)}")
    parser.add_argument("--match", default="", help="only checks with this text in their names, as gpt")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all slices; default %(default)s")
    parser.add_argument("--output", type=Path, help="write all rows to this JSON file")
    parser.add_argument("--rows", type=float, help=argparse.SUPPRESS)  # seconds: of the process of a slice
    return parser


def _slices(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SLICES]:
        raise argparse.ArgumentTypeError(f"no slice {', '.join(unknown)}: there are {', '.join(SLICES)}")
    return [name for name in SLICES if name in names]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

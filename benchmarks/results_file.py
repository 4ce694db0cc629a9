"""A results file: JSON with one row on each line, replaced after every row, completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Results", "write_results"]


class Results(msgspec.Struct):
    """A results file without a format of its own: the conditions of each run, and rows of any kind."""

    sessions: list[dict[str, Any]]
    rows: list[Any]


def write_results(file: Path, results: msgspec.Struct) -> None:
    """Replace a results file.

    Args:
        file: the file; its old contents remain if writing fails.
        results: of any format with a field ``rows``.
    """
    raw = msgspec.to_builtins(results)
    rows = b",\n".join(msgspec.json.encode(row) for row in raw.pop("rows"))
    head = msgspec.json.format(msgspec.json.encode(raw), indent=1).rstrip(b"\n}")
    beside = file.with_suffix(".part")
    beside.write_bytes(head + b',\n "rows": [\n' + rows + b"\n ]\n}\n")
    os.replace(beside, file)

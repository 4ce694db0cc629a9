"""A results file: JSON with one row on each line, replaced after every row, completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["write_results"]


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

"""A results file: JSON with a row a line, written anew after every row, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["write_results"]


def write_results(file: Path, results: msgspec.Struct) -> None:
    """Write all of it, or nothing.

    Args:
        file: that is replaced.
        results: of any format that has ``rows``.
    """
    raw = msgspec.to_builtins(results)
    rows = b",\n".join(msgspec.json.encode(row) for row in raw.pop("rows"))
    head = msgspec.json.format(msgspec.json.encode(raw), indent=1).rstrip(b"\n}")
    beside = file.with_suffix(".part")
    beside.write_bytes(head + b',\n "rows": [\n' + rows + b"\n ]\n}\n")
    os.replace(beside, file)

"""Every writer of files: a failure leaves the old file whole and no other file, and names the file."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from checkmate import solve, sweep, write_graph, write_schedule
from checkmate.plugins import EXPORTERS
from checkmate.report.html import html_report
from checkmate.report.plot import plot_frontier, plot_memory, plot_plan

from .judged import by_hand

SEEN = by_hand()
WRITERS: dict[str, Callable[[Path], None]] = {
    "graph": lambda file: write_graph(file, SEEN.graph),
    "schedule": lambda file: write_schedule(file, SEEN.schedule, SEEN.graph),
    "report": lambda file: html_report(solve(SEEN.graph, "100%", solver="keep-all"), file),
    "curves": lambda file: plot_memory({"one": ([0, 1], [1, 2])}, 2, file),
    "matrices": lambda file: plot_plan(SEEN, file),
    "frontier": lambda file: plot_frontier(sweep(SEEN.graph, ["100%"], ["keep-all"]), file),
    **{
        f"exporter {spec.name}": lambda file, name=spec.name: EXPORTERS.load(name).write(SEEN, file)  # type: ignore[misc]
        for spec in EXPORTERS.specs()
        if EXPORTERS.load(spec.name).__module__.startswith("checkmate.")
    },
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: str
) -> None:
    file = tmp_path / "file.svg"
    file.write_bytes(b"old")
    WRITERS[name](file)
    written = file.read_bytes()
    assert written not in (b"old", b"")
    file.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match=re.escape(f"{os.strerror(errno.ENOSPC)}: {str(file)!r}")):
        WRITERS[name](file)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file.svg": b"old"}

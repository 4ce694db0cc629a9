"""A slice in a process of its own: a crash, a hang or an error of the device ends that slice only.

The process writes each row as a line of JSON to its standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from checkmate_torch.selfcheck.rows import FAILED, Row

__all__ = ["COMMAND", "END", "encoded", "rows_from"]

COMMAND = (sys.executable, "-m", "checkmate_torch.selfcheck")
END = '{"selfcheck": null}'
"""The line after the last row."""
_MARK = '{"selfcheck": {'
_LAST = 2000
_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Without it, cuBLAS has no deterministic kernels."""


def encoded(row: Row) -> str:
    """A row as a line, without its end."""
    return json.dumps({"selfcheck": asdict(row)})


def rows_from(slice_name: str, arguments: Sequence[str], limit_s: float) -> Iterator[Row]:
    """The rows of a slice as its process writes them; one that fails says how the process ended.

    Args:
        slice_name: of the rows.
        arguments: after :data:`COMMAND`.
        limit_s: seconds after which the process is killed.
    """
    environment = {**_CUBLAS, **os.environ, "CHECKMATE_PROGRESS": "0", "PYTHONWARNINGS": "ignore"}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as child,
    ):
        late = threading.Timer(limit_s, child.kill)
        late.start()
        try:
            for line in child.stdout or ():
                if line.startswith(_MARK):
                    yield Row(**json.loads(line)["selfcheck"])
                elif line.strip() == END:
                    return
            ended = child.wait()
        finally:
            is_late = late.finished.is_set()
            late.cancel()
            child.kill()
        errors.seek(0)
        said = errors.read()[-_LAST:]
        why = f"killed after {limit_s:.0f} s" if is_late else f"the process ended with {ended}"
        last = (said.strip().splitlines() or [""])[-1][:200]
        yield Row(
            passed=False,
            verdict=FAILED,
            text=f"{why}: {last}",
            facts={"stderr": said},
            slice=slice_name,
            check="the process of this slice",
        )

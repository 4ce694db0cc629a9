"""The slices, each in a process of its own: a crash, a hang or an error of the device ends that slice only.

The process runs check after check, whatever one of them raises, until its time is over. It writes each row as
a line of JSON to its standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

import torch

from checkmate import InfeasibleBudgetError
from checkmate_torch.selfcheck import bits, tools, truth
from checkmate_torch.selfcheck.answers import FAILED, LATE, Answer, Check, Setup
from checkmate_torch.selfcheck.loop import forget_all, setup_on

__all__ = ["COMMAND", "END", "SLICES", "encoded", "names_of", "rows_from_process", "rows_of"]

SLICES: Mapping[str, Callable[[Setup], Iterator[Check]]] = {
    "bits": bits.checks,
    "truth": truth.checks,
    "tools": tools.checks,
}
"""Name of each slice → its checks, in the order in which slices run."""
COMMAND = (sys.executable, "-m", "checkmate_torch.selfcheck")
END = '{"selfcheck": null}'
"""The line after the last row."""
_MARK = '{"selfcheck": {'
_LAST = 2000
_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Without it, cuBLAS has no deterministic kernels."""


def names_of(name: str, device: torch.device) -> list[str]:
    """The names of the checks of a slice."""
    return [check.name for check in SLICES[name](Setup(device=device))]


def rows_of(name: str, device: torch.device, seconds: float, match: str = "") -> Iterator[Answer]:
    """Run the checks of a slice in this process.

    Args:
        name: of the slice.
        device: of all networks.
        seconds: after this time no check starts, and each check that is left has a row that says so.
        match: only checks with this text in their names run.
    """
    end = time.monotonic() + seconds
    for check in SLICES[name](setup_on(device)):
        if match not in check.name:
            continue
        start = time.monotonic()
        answer = Answer(passed=None, verdict=LATE) if start > end else _answer_of(check)
        seconds_spent = round(time.monotonic() - start, 2)
        yield replace(answer, slice=name, check=check.name, seconds=seconds_spent)


def _answer_of(check: Check) -> Answer:
    try:
        return check.run()
    except InfeasibleBudgetError as error:
        least = {"least": error.minimum}
        return Answer(passed=None, verdict="infeasible", text=f"{error.minimum} bytes would do", facts=least)
    except Exception as error:  # noqa: BLE001 - whatever a check meets is its answer
        said = (str(error).splitlines() or [""])[0][:200]
        facts = {"traceback": traceback.format_exc()}
        return Answer(passed=False, verdict=FAILED, text=f"{type(error).__name__}: {said}", facts=facts)
    finally:
        forget_all()


def encoded(row: Answer) -> str:
    """A row as a line, without its end."""
    return json.dumps({"selfcheck": asdict(row)})


def rows_from_process(name: str, arguments: Sequence[str], limit_s: float) -> Iterator[Answer]:
    """The rows of a slice as its process writes them; if it dies, one more row says how.

    Args:
        name: of the slice.
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
                    yield Answer(**json.loads(line)["selfcheck"])
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
        text = f"{why}: {(said.strip().splitlines() or [''])[-1][:200]}"
        check, facts = "the process of this slice", {"stderr": said}
        yield Answer(passed=False, verdict=FAILED, text=text, facts=facts, slice=name, check=check)

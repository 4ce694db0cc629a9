"""The slices, and how one runs: check after check, whatever one of them raises, until its time is over."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

import torch

from checkmate import InfeasibleBudgetError
from checkmate_torch.selfcheck import bits, largest, times, tools, truth
from checkmate_torch.selfcheck.loop import forget_all, setup_on
from checkmate_torch.selfcheck.rows import FAILED, LATE, Answer, Check, Row, Setup

__all__ = ["SLICES", "rows_of"]

SLICES: Mapping[str, Callable[[Setup], Iterator[Check]]] = {
    "bits": bits.checks,
    "truth": truth.checks,
    "tools": tools.checks,
    "times": times.checks,
    "largest": largest.checks,
}
"""By name, in the order in which they run."""


def rows_of(name: str, device: torch.device, seconds: float, match: str = "") -> Iterator[Row]:
    """Run the checks of a slice.

    Args:
        name: of the slice.
        device: of all networks.
        seconds: afterwards no further check starts, and each has a row that says so.
        match: only checks with this text in their names run.
    """
    end = time.monotonic() + seconds
    setup = setup_on(device)
    for check in SLICES[name](setup):
        if match not in check.name:
            continue
        start = time.monotonic()
        answer = Answer(passed=None, verdict=LATE) if start > end else _answer_of(check)
        yield Row(**asdict(answer), slice=name, check=check.name, seconds=round(time.monotonic() - start, 2))


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

"""Measuring the distinct ops of a step once: layout ↦ (seconds, workspace bytes), in memory and on disk.

Two ops of the same layout (function, shapes, strides, dtypes) cost the same on the same machine, so that each
layout is measured once in a process and, through :class:`checkmate.cost.MeasuredOps`, once on a machine. If
the runs of an op differed much, as on a busy machine, a later process measures it again, twice at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from checkmate.cost import MeasuredOps, OpProfile
from checkmate.errors import ProfilerBusyError
from checkmate.problem import OnProgress, Progress

__all__ = ["by_bytes", "measured_ops"]

_Op = TypeVar("_Op")

_BYTES_PER_SECOND = 1e10
"""Replaces the memory bandwidth for ops that can't be run on made-up inputs."""
_SAVED_EVERY = 32
"""Measured ops between two writes to disk, so that a killed process loses little."""
_BUSY = (
    "a new plan times its ops, which is impossible inside a profiler or memory meter: run one step of the "
    "compiled model before measuring it"
)
_memory: dict[str, dict[str, OpProfile]] = {}  # machine → layout → profile
_log = logging.getLogger(__name__)


def by_bytes(size: int) -> OpProfile:
    """The profile of an op that can't be measured: the seconds of moving ``size`` bytes, no workspace."""
    return OpProfile(seconds=size / _BYTES_PER_SECOND, workspace=0)


def measured_ops(
    machine: dict[str, str],
    distinct: Mapping[str, _Op],
    profile: Callable[[Iterable[_Op]], Iterable[OpProfile]],
    *,
    name: Callable[[_Op], str],
    on_disk: bool,
    on_progress: OnProgress | None = None,
) -> Mapping[str, OpProfile]:
    """The profile of each distinct op; those that are known are not measured again.

    Args:
        machine: what decides how long an op takes, besides the op; see :class:`checkmate.cost.MeasuredOps`.
        distinct: layout → an op of that layout.
        profile: measures a few ops, in order; it takes each one from the iterable when it is about to run it.
        name: of an op, for progress reports.
        on_disk: whether profiles are read from disk and kept there.
        on_progress: called before each op that is measured.

    Returns:
        Layout → profile, at least for every layout of ``distinct``.

    Raises:
        ProfilerBusyError: inside a profiler or a memory meter.
    """
    known = _memory.setdefault(repr(machine), {})
    table = MeasuredOps(machine) if on_disk else None
    unsteady: dict[str, OpProfile] = {}
    if table is not None and not known.keys() >= distinct.keys():
        kept = table.known()
        unsteady = {layout: found for layout, found in kept.items() if found.to_repeat}
        known |= {layout: found for layout, found in kept.items() if layout not in unsteady} | known
    new = {layout: op for layout, op in distinct.items() if layout not in known}
    started = time.monotonic()

    def announced(ops: Iterable[tuple[int, _Op]]) -> Iterator[_Op]:
        for k, op in ops:
            step = f"timing op {k + 1} of {len(new)}: {name(op)}"
            _log.debug("%s", step)
            if on_progress is not None:
                on_progress(Progress(None, 0.0, time.monotonic() - started, step))
            yield op

    numbered = iter(enumerate(new.items()))
    while part := list(islice(numbered, _SAVED_EVERY)):
        fresh: dict[str, OpProfile] = {}
        ops = announced((k, op) for k, (_, op) in part)
        try:
            for (_, (layout, _)), found in zip(part, profile(ops), strict=True):
                fresh[layout] = found.after(unsteady.get(layout))
        except ProfilerBusyError as error:
            left = new.keys() - fresh.keys() - known.keys()
            if left - unsteady.keys():
                raise ProfilerBusyError(_BUSY) from error
            known |= {layout: unsteady[layout] for layout in left}  # good enough until the next process
            break
        finally:
            known |= fresh
            if table is not None and fresh:
                table.add(fresh)
    if new:
        _log.info("timed %d distinct ops in %.1f s", len(new), time.monotonic() - started)
    if differing := sum(known[layout].to_repeat for layout in new):
        _log.info("the runs of %d ops differed, as on a busy machine: a later process times them", differing)
    return known

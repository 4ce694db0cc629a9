"""Deliberate faults: hostile files, failing writes, kills, broken imports, forged cache entries.

A function makes one fault from a random source and an empty folder; the fault reports the harm it did.
"""

from __future__ import annotations

from faults.cache import forgery
from faults.commands import broken_import, kill
from faults.fault import FaultClass
from faults.files import hostile_command, hostile_graph, hostile_schedule
from faults.writes import failing_write

__all__ = ["CLASSES"]

_IS_READ = "it is read, or refused with a CheckmateError"

CLASSES = (
    FaultClass("graph files, mutated", _IS_READ, 1000, hostile_graph),
    FaultClass("schedule files, mutated", _IS_READ, 800, hostile_schedule),
    FaultClass(
        "commands on such files, pipes, devices and folders",
        "exit code 0, 1 or 2; no traceback; no hang",
        400,
        hostile_command,
    ),
    FaultClass(
        "failing writes, at every system call of every writer",
        "the old file is intact, no other file remains beside it, the message names it",
        500,
        failing_write,
    ),
    FaultClass(
        "forged entries of the schedule cache",
        "the entry is refused, the answer is right, nothing hangs",
        400,
        forgery,
    ),
    FaultClass(
        "optional packages that fail at import",
        "commands that don't need them work; others name them in one line, with exit code 2",
        90,
        broken_import,
        apart=True,
    ),
    FaultClass(
        "kills of solve and sweep, in one process and several, at random moments",
        "the output is the old or a complete new one, no process remains, the exit code is right",
        120,
        kill,
        apart=True,
    ),
)
"""In the order of the table."""

"""The table of measured ops of one machine: layout of a call ↦ (seconds, workspace bytes).

    machine = device, release of the framework, threads, …  one file each, in JSON
    layout  = function, shapes, strides, dtypes, arguments  one line each

An op costs the same in every process on the machine, so each profile is kept on disk. Deleting a file loses
only the time to measure again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from checkmate.errors import FormatError
from checkmate.files.disk import cache_directory, entries, read_file, replace_file

__all__ = ["MeasuredOps", "OpProfile", "processor", "profiles_directory", "profiles_in"]

_FORMAT = "checkmate.op-profiles"
_VERSION = 1
"""Version of the file and of the method of measuring: figures of another version are not comparable."""
_SPREAD = 1.5
"""If the median run is slower than the fastest by more than this factor, something else was running."""
_NOISE_S = 20e-6
"""Seconds by which the median may always exceed the fastest run, whatever the factor."""
_MOST_TIMES = 3
"""Most measurements of an op whose runs differ each time; then the fastest of all runs counts."""
_CPUINFO = Path("/proc/cpuinfo")
_log = logging.getLogger(__name__)


class OpProfile(NamedTuple):
    """The cost of one op.

    Attributes:
        seconds: time of the fastest run.
        workspace: the most bytes allocated at once while the op runs, minus those alive at its end.
        unsteady: how often the op was measured, if the runs differed much each time, as on a busy machine; 0
            = they agreed.
    """

    seconds: float
    workspace: int
    unsteady: int = 0

    @classmethod
    def of_runs(cls, seconds: Sequence[float], workspace: int) -> Self:
        """The profile of an op that ran several times.

        >>> OpProfile.of_runs([0.0101, 0.01, 0.0102], 8), OpProfile.of_runs([0.04, 0.01, 0.03], 8).unsteady
        (OpProfile(seconds=0.01, workspace=8, unsteady=0), 1)
        """
        fastest = min(seconds)
        differ = statistics.median(seconds) > max(_SPREAD * fastest, fastest + _NOISE_S)
        return cls(fastest, workspace, int(differ))

    @property
    def to_repeat(self) -> bool:
        """Whether it should be measured again, because the runs differed."""
        return 0 < self.unsteady < _MOST_TIMES

    def after(self, earlier: OpProfile | None) -> OpProfile:
        """This profile merged with an earlier one, whose runs differed; None = this is the first."""
        if earlier is None or not self.unsteady:
            return self
        return OpProfile(min(self.seconds, earlier.seconds), self.workspace, earlier.unsteady + 1)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a file."""

    format: str
    version: int
    machine: dict[str, str]
    ops: dict[str, OpProfile]


class MeasuredOps:
    """The measured ops of one machine.

    Args:
        machine: what decides how long an op takes, besides the op: the device (:func:`processor`), the
            framework's release, the number of threads, further settings of the framework.
        directory: the folder of the files; None = :func:`profiles_directory`.

    The file is read at each look-up. A file that can't be read is reported, and its ops are measured again; a
    file that can't be written is reported, and nothing else happens.

    >>> import tempfile
    >>> here = {"device": "abacus", "torch": "2.13", "threads": "1"}
    >>> table = MeasuredOps(here, Path(tempfile.mkdtemp()))
    >>> table.add({"neg(f32[4])": OpProfile(seconds=1e-6, workspace=0)})
    >>> MeasuredOps(here, table.file.parent).known()
    {'neg(f32[4])': OpProfile(seconds=1e-06, workspace=0, unsteady=0)}
    """

    def __init__(self, machine: dict[str, str], directory: Path | None = None) -> None:
        key = hashlib.sha256(msgspec.json.encode(machine, order="sorted")).hexdigest()
        folder = profiles_directory() if directory is None else directory
        self.machine = machine
        self.file = folder / f"{key}.json"

    def known(self) -> dict[str, OpProfile]:
        """Every op on disk, by its layout."""
        try:
            return self._read()
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            _log.warning("measured costs in %s are ignored: %s", self.file, error)
            return {}

    def add(self, ops: dict[str, OpProfile]) -> None:
        """Add ops to the file; ops that another process has added meanwhile stay."""
        content: dict[str, Any] = {
            "format": _FORMAT,
            "version": _VERSION,
            "machine": self.machine,
            "ops": self.known() | ops,
        }
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, msgspec.json.format(msgspec.json.encode(content), indent=1), follow=False)
        except OSError as error:
            _log.warning("measured costs can't be kept in %s: %s", self.file, error)

    def _read(self) -> dict[str, OpProfile]:
        held = msgspec.json.decode(read_file(self.file), type=_File)
        if (held.format, held.version, held.machine) != (_FORMAT, _VERSION, self.machine):
            raise ValueError("it is of another machine or version")
        if any(min(op) < 0 for op in held.ops.values()):
            raise ValueError("it holds a negative cost")
        return held.ops


def profiles_directory() -> Path:
    """``op-profiles`` in Checkmate's cache directory, see :func:`~checkmate.files.disk.cache_directory`."""
    return cache_directory() / "op-profiles"


def profiles_in(directory: Path) -> list[OpProfile]:
    """The profiles of all machines whose files are in a folder; files that can't be read have none."""
    found: list[OpProfile] = []
    for file in entries(directory):
        with contextlib.suppress(OSError, FormatError, msgspec.MsgspecError, UnicodeDecodeError):
            found += msgspec.json.decode(read_file(file), type=_File).ops.values()
    return found


@cache
def processor() -> str:
    """The model of this machine's CPU, as the system reports it."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()

"""The table of measured ops of one machine: layout of a call ↦ (seconds, workspace bytes).

    machine = (device, release of PyTorch, threads)         one file each, in JSON
    layout  = function, shapes, strides, dtypes, arguments  one line each

An op costs the same whoever asks, so what was measured once is kept: in memory, and on disk for the next
process. Deleting a file loses nothing but the time to measure again.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch

from checkmate.cache import default_directory, replace_file
from checkmate_torch.profile import OpProfile

__all__ = ["MeasuredOps", "machine_of"]

_FORMAT = "checkmate.op-profiles"
_VERSION = 1
"""Of the file and of how ops are measured: figures of another version are not comparable."""
_CPUINFO = Path("/proc/cpuinfo")
_log = logging.getLogger(__name__)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """What is on disk."""

    format: str
    version: int
    machine: dict[str, str]
    ops: dict[str, OpProfile]


def machine_of(device: torch.device) -> dict[str, str]:
    """What decides how long an op takes, beside the op: device, release of PyTorch, threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {"device": name, "torch": str(torch.__version__), "threads": str(torch.get_num_threads())}


class MeasuredOps:
    """The measured ops of one machine.

    Args:
        machine: from :func:`machine_of`.
        directory: of the files; None = ``op-profiles`` in Checkmate's cache directory.

    The file is read at the first look-up. One that can't be read is reported and measured anew; one that
    can't be written is reported, and nothing else happens.

    >>> import tempfile
    >>> here = {"device": "abacus", "torch": "2.13", "threads": "1"}
    >>> table = MeasuredOps(here, Path(tempfile.mkdtemp()))
    >>> table.add({"neg(f32[4])": OpProfile(seconds=1e-6, workspace=0)})
    >>> MeasuredOps(here, table.file.parent).known()
    {'neg(f32[4])': OpProfile(seconds=1e-06, workspace=0)}
    """

    def __init__(self, machine: dict[str, str], directory: Path | None = None) -> None:
        """Remember where; touch nothing."""
        key = hashlib.sha256(msgspec.json.encode(machine, order="sorted")).hexdigest()
        folder = default_directory().parent / "op-profiles" if directory is None else directory
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
        """Keep further ops; what another process has added meanwhile stays."""
        content: dict[str, Any] = {
            "format": _FORMAT,
            "version": _VERSION,
            "machine": self.machine,
            "ops": self.known() | ops,
        }
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, msgspec.json.format(msgspec.json.encode(content), indent=1))
        except OSError as error:
            _log.warning("measured costs can't be kept in %s: %s", self.file, error)

    def _read(self) -> dict[str, OpProfile]:
        held = msgspec.json.decode(self.file.read_bytes(), type=_File)
        if (held.format, held.version, held.machine) != (_FORMAT, _VERSION, self.machine):
            raise ValueError("it is of another machine or version")
        if not all(op.seconds >= 0 and op.workspace >= 0 for op in held.ops.values()):
            raise ValueError("it holds a negative cost")
        return held.ops


@cache
def _processor() -> str:
    """The model of the CPU, as exactly as the system tells."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()

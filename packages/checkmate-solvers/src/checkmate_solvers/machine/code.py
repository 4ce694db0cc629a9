"""The machine code of the local search in this process: loaded once, as soon as it is compiled.

Solvers ask :func:`available` and work without it until then; :func:`machine_code` waits.
:mod:`checkmate_solvers.machine.compilation` compiles.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from checkmate import SolverError
from checkmate.solving import ANYTHING, one_line
from checkmate_solvers.machine import compilation

if TYPE_CHECKING:
    from checkmate_solvers.machine.entry import Entry

__all__ = ["available", "check", "is_awaited", "machine_code"]

_LOAD_S = 0.5
"""Seconds that loading takes, Numba's import included."""
_PAUSE_S = 0.1
_COMPILING = (
    "compiling the local search, in the background: about half a minute, once on this machine; "
    "until then, schedules are found without it"
)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _MachineCode:
    entry: Entry | None = None
    failure: str = ""


_here = _MachineCode()


def available(left_s: float) -> Entry | None:
    """The machine code, or None if it is not compiled yet, or can't be loaded within ``left_s`` seconds.

    The first call on a machine starts the process that compiles it. If that fails, or Numba is broken, one
    warning is logged.
    """
    if _here.entry is None and not _here.failure and left_s > _LOAD_S:
        try:
            compiling = compilation.is_compiling()  # asked first: it may end before the next line
            if compilation.is_compiled():
                _here.entry = _load()
            elif not compiling:
                if compilation.start():
                    _log.warning(_COMPILING)
                else:
                    _here.failure = "compiling it failed"
        except ANYTHING as error:
            _here.failure = one_line(error)
        if _here.failure:
            _log.warning(
                "solving without the local search: %s ('checkmate doctor' looks into it)", _here.failure
            )
    return _here.entry


def is_awaited() -> bool:
    """Whether there is no machine code yet, but a process compiles it."""
    return _here.entry is None and not _here.failure and compilation.is_compiling()


def machine_code() -> Entry:
    """The machine code; if it is not compiled yet, wait for that.

    Raises:
        SolverError: if it can't be compiled or loaded.
    """
    while (entry := available(float("inf"))) is None:
        if _here.failure:
            raise SolverError(f"the local search has no machine code: {_here.failure}")
        time.sleep(_PAUSE_S)
    return entry


def check() -> None:
    """Import Numba and the modules that become machine code; their errors pass through.

    Numba reads ``.numba_config.yaml`` in the current folder, which is not trusted: where there is one, the
    import happens in another folder.
    """
    elsewhere = "numba" not in sys.modules and os.path.exists(".numba_config.yaml")
    with contextlib.chdir(compilation.folder()) if elsewhere else contextlib.nullcontext():
        import_module("checkmate_solvers.machine.entry")


def _load() -> Entry:
    check()
    from checkmate_solvers.machine.entry import entry, try_out

    work = entry(compilation.folder())
    try:
        try_out(work)
    except Exception:
        compilation.discard()
        raise
    return work

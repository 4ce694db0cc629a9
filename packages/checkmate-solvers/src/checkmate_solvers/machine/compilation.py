"""Compiling the local search: once on a machine, in a process of its own, while solvers work without it.

Numba unpickles what it finds in its cache, so the machine code is kept in a folder that only this user can
write: ``machine-code`` in the user's cache directory of this platform. In it there is one folder for each
combination of our sources, their place, Numba, Python and processor. Where no such folder can be made, a
temporary one serves, until this process exits.

The process that compiles outlives the one that started it, or short commands would start over for ever. It
takes half a minute of one core and holds no pipe or terminal. If several run, one compiles and the others
wait.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import platformdirs

from checkmate_solvers.isolation import isolated_python

__all__ = ["discard", "folder", "is_compiled", "is_compiling", "is_interpreted", "serve", "start"]

_PROGRAM = "from checkmate_solvers.machine.compilation import serve; serve()"
_log = logging.getLogger(__name__)
_started: list[subprocess.Popen[bytes]] = []


def is_interpreted() -> bool:
    """Whether ``NUMBA_DISABLE_JIT`` turns compilation off: the same functions run as plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def is_compiled() -> bool:
    """Whether the machine code is compiled, or compilation is turned off."""
    return is_interpreted() or any(folder().glob("*/*.nbc"))


def is_compiling() -> bool:
    """Whether a process of ours, or of another Checkmate of this user, is compiling."""
    if any(process.poll() is None for process in _started):
        return True
    with _lock(folder(), wait=False) as alone:
        return not alone


def start() -> bool:
    """Start the process that compiles; False if one was started before, which then has failed."""
    if _started:
        return False
    command, environment = isolated_python(_PROGRAM)
    process = subprocess.Popen(
        [*command, str(folder())],
        env=environment,
        cwd=folder(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _started.append(process)
    atexit.register(setattr, process, "returncode", 0)  # it may go on, without a warning from Popen
    return True


def discard() -> None:
    """Delete machine code that can't be loaded."""
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()


@cache
def folder() -> Path:
    """The folder for the machine code of these sources, this Numba and this processor; made if needed."""
    kept = Path(platformdirs.user_cache_dir("checkmate", appauthor=False), "machine-code")
    place = kept / _key()
    try:
        for path in (kept, place):
            _make_private(path)
    except OSError as error:
        _log.warning("machine code is kept only until this process exits: %s", error)
        place = Path(tempfile.mkdtemp(prefix="checkmate-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def serve() -> None:
    """Compile, in the process that :func:`start` starts: its argument is the folder."""
    place = Path(sys.argv[1])
    with _lock(place, wait=True):
        if not any(place.glob("*/*.nbc")):
            from checkmate_solvers.machine.entry import entry, try_out

            try_out(entry(place))


def _key() -> str:
    """A digest of all that the machine code depends on.

    Numba notices when the file of a cached function changes, but not when a function that it calls does: so
    all sources of this folder are part of the key.
    """
    from llvmlite import binding

    entry = Path(__file__).with_name("entry.py")  # Numba recognises its cache by this file's place and time
    stamp = entry, entry.stat().st_mtime_ns, entry.stat().st_size
    processor = platform.machine(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    sources = [path.read_bytes() for path in sorted(entry.parent.glob("*.py"))]
    key = stamp, processor, metadata.version("numba"), sys.implementation.cache_tag, sources
    return hashlib.sha256(repr(key).encode()).hexdigest()[:20]


def _make_private(path: Path) -> None:
    """Make a folder that this user alone can write.

    Raises:
        OSError: if that is impossible.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    if found.st_mode & 0o022:
        path.chmod(0o700)
    tempfile.TemporaryFile(dir=path).close()  # raises where nothing can be written


@contextlib.contextmanager
def _lock(place: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a folder, which ends with the process; yields whether this process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows: two processes then compile twice
        yield True
        return
    with open(place / "compiling", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True

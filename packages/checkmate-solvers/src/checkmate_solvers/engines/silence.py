"""Standard output while a native library runs: HiGHS writes lines there that none of its options turns off.

They are written by C, below Python's ``sys.stdout``: file descriptor 1 itself must point elsewhere, and C's
buffer must be emptied before it points back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator

__all__ = ["native_output_on_stderr"]

_lock = threading.Lock()
_users = 0
_saved = -1


@contextlib.contextmanager
def native_output_on_stderr() -> Iterator[None]:
    """Redirect file descriptor 1 to standard error inside this block.

    The descriptor belongs to the whole process: output of other threads goes there as well.
    Threads may be inside at the same time; the last one out restores it. Without the two descriptors, as in a
    program without a console, nothing is done.
    """
    global _users, _saved
    with _lock:
        _users += 1
        if _users == 1:
            _flush()
            with contextlib.suppress(OSError):
                _saved = os.dup(1)
                os.dup2(2, 1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _saved >= 0:
                _flush()
                os.dup2(_saved, 1)
                os.close(_saved)
                _saved = -1


def _flush() -> None:
    """Empty C's buffers; not on Windows, where extensions share no C library."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)

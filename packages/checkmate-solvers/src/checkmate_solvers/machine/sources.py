"""The sources of the machine code: their digest, and whether they are compiled at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["digest", "is_interpreted"]

_PYTHON = {"code.py", "compilation.py", "driver.py", "reference.py", "sources.py"}
"""Files of this folder that are not part of the machine code."""


def digest() -> bytes:
    """A digest of all files of this folder that can be part of the machine code."""
    files = sorted(path for path in Path(__file__).parent.glob("*.py") if path.name not in _PYTHON)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).digest()


def is_interpreted() -> bool:
    """Whether ``NUMBA_DISABLE_JIT`` turns compilation off: the same functions run as plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

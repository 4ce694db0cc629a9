"""Where Checkmate keeps what it has found out, and how it writes a file: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["ENVIRONMENT_VARIABLE", "PART", "cache_directory", "replace_file"]

ENVIRONMENT_VARIABLE = "CHECKMATE_CACHE_DIR"

PART = ".checkmate-part"
"""How the name of a file ends that is being written."""


def cache_directory() -> Path:
    """``$CHECKMATE_CACHE_DIR``, or else ``checkmate`` in the user's cache directory of this platform."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen)
    import platformdirs  # here, so that importing checkmate stays light

    return Path(platformdirs.user_cache_dir("checkmate", appauthor=False))


def replace_file(file: Path, content: bytes) -> None:
    """Write a whole file: a reader sees the old one or the new one, never a part.

    Raises:
        OSError: if it can't be written; then nothing is left behind.
    """
    number, part = tempfile.mkstemp(dir=file.parent, prefix=file.stem[:8], suffix=PART)
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(content)
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise

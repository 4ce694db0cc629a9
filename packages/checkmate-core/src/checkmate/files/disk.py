"""The cache directory, and files: read up to a size limit, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from checkmate.errors import FormatError
from checkmate.text.printable import excerpt
from checkmate.units import format_bytes

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "MAX_SIZE",
    "PART",
    "cache_directory",
    "delete_entries",
    "entries",
    "is_stream",
    "read_file",
    "read_stream",
    "replace_file",
]

ENVIRONMENT_VARIABLE = "CHECKMATE_CACHE_DIR"

PART = ".checkmate-part"
"""Suffix of the name of a file that is being written."""

MAX_SIZE = 256 * 2**20
"""The default limit on the bytes of a file: graphs of over a million ops are smaller."""

_STALE_S = 3600.0
_DIGITS = frozenset("0123456789abcdef")
_AT_ONCE = 2**20
_PIPE = "pipe it to the command, and call it '-'"
_BINARY: int = getattr(os, "O_BINARY", 0)  # exists on Windows only
_WITHOUT_WAITING: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # pipes and terminals block


def cache_directory() -> Path:
    """``$CHECKMATE_CACHE_DIR``, or else ``checkmate`` in the user's cache directory of this platform."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen)
    import platformdirs  # here, so that importing checkmate stays light

    return Path(platformdirs.user_cache_dir("checkmate", appauthor=False))


def entries(folder: Path) -> list[Path]:
    """The files of a cache in this folder: each is named by a SHA-256 sum."""
    return [file for file in folder.glob("*.json") if len(file.stem) == 64 and {*file.stem} <= _DIGITS]


def delete_entries(folder: Path) -> int:
    """Delete a cache's files, and partial ones older than an hour; return the number of entries.

    Raises:
        OSError: if the folder may not be changed.
    """
    found = entries(folder)
    for file in found:
        file.unlink(missing_ok=True)
    for file in folder.glob(f"*{PART}"):
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished
            if time.time() - file.stat().st_mtime > _STALE_S:
                file.unlink()
    return len(found)


def read_file(file: str | os.PathLike[str], *, max_size: int = MAX_SIZE) -> bytes:
    """All bytes of a regular file; pipes and devices are refused: reading them may block for ever.

    Raises:
        FormatError: if it is not a regular file, or is too large; names it, and says what to do.
        OSError: if it can't be read.
    """
    number = os.open(file, os.O_RDONLY | _BINARY | _WITHOUT_WAITING)
    try:  # not os.stat: the path may name another file by now
        found, name = os.fstat(number), excerpt(os.fspath(file))
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(file))
        if not stat.S_ISREG(found.st_mode):
            raise FormatError(f"{name}: it is not a regular file, and may never end: {_PIPE}")
        if found.st_size > max_size:
            raise _too_large(name, max_size, found.st_size)
        return _bounded(partial(os.read, number), name, max_size)
    finally:
        os.close(number)


def read_stream(stream: BinaryIO, name: str, *, max_size: int = MAX_SIZE) -> bytes:
    """All bytes of an open stream, called ``name`` in messages; otherwise as :func:`read_file`."""
    return _bounded(stream.read, name, max_size)


def _bounded(read: Callable[[int], bytes], name: str, max_size: int) -> bytes:
    parts, left = list[bytes](), max_size + 1
    while left and (part := read(min(left, _AT_ONCE))):
        parts.append(part)
        left -= len(part)
    if not left:  # a stream, or a file that grew
        raise _too_large(name, max_size)
    return b"".join(parts)


def _too_large(name: str, max_size: int, size: int | None = None) -> FormatError:
    given = "" if size is None else f" has {format_bytes(size)},"
    return FormatError(
        f"{name}:{given} more than the limit of {format_bytes(max_size)}: if you trust it, raise the "
        "limit with --max-size or max_size= (reading takes several times the size in memory)"
    )


def replace_file(file: str | os.PathLike[str], content: bytes, *, follow: bool = True) -> None:
    """Write a file atomically: after any failure, a power cut included, it is the old or the new file, whole.

    The content is written to another file in the same folder, flushed to the disk, and renamed. A new file
    gets the permissions that ``open`` would give, an existing one keeps its own.

    Args:
        file: the path; its folder must exist and be writable.
        content: all bytes of the file.
        follow: True = a symbolic link stays and its target is replaced; a stream (:func:`is_stream`) is
            written to directly. False = whatever has this name is replaced by a file that only this user
            can read: for folders of Checkmate's own.

    Raises:
        OSError: if it can't be written; names ``file``. No partial file is left behind.
    """
    try:
        if follow and is_stream(file):
            _write_directly(file, content)
        else:
            _write_beside(os.path.realpath(file) if follow else os.fspath(file), content, follow=follow)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(file)) from error


def is_stream(file: str | os.PathLike[str]) -> bool:
    """Whether ``file`` is a device, a pipe, or the file to which standard output or error goes.

    Raises:
        OSError: if its type can't be read.
    """
    found = _look(file)
    return found is not None and (not stat.S_ISREG(found.st_mode) or _standard(found) is not None)


def _look(file: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        return os.stat(file)
    except FileNotFoundError:
        return None


def _standard(found: os.stat_result) -> int | None:
    """The descriptor of standard output or error, if ``found`` is one of them."""
    for number in (1, 2):
        with contextlib.suppress(OSError):  # closed
            if os.path.samestat(os.fstat(number), found):
                return number
    return None


def _write_directly(file: str | os.PathLike[str], content: bytes) -> None:
    standard = _standard(os.stat(file))
    number = os.open(file, os.O_WRONLY) if standard is None else os.dup(standard)
    try:
        _write_all(number, content)
    finally:
        os.close(number)


def _write_beside(target: str, content: bytes, *, follow: bool) -> None:
    found = _look(target) if follow else None
    if found is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    folder, name = os.path.split(target)
    part = os.path.join(folder, f"{name[:8]}{secrets.token_hex(8)}{PART}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
        number = os.open(part, flags, 0o666 if follow else 0o600)
        try:
            if found is not None:
                os.chmod(part, stat.S_IMODE(found.st_mode))
            _write_all(number, content)
            os.fsync(number)
        finally:
            os.close(number)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    with contextlib.suppress(OSError):  # not on every system; the file is whole either way
        _flush_folder(folder or os.curdir)


def _write_all(number: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(number, rest) :]


def _flush_folder(folder: str) -> None:
    """Make the rename survive a power cut."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

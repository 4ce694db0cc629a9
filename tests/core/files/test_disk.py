"""Files on disk: their folder, and written whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkmate.errors import FormatError
from checkmate.files.disk import cache_directory, is_stream, read_file, read_stream, replace_file


def test_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_it_is_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.delenv("CHECKMATE_CACHE_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("CHECKMATE_CACHE_DIR", value)
    assert cache_directory() == platformdirs.user_cache_path("checkmate", appauthor=False)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    for content in (b"old", b"", b"new" * 10**6):
        replace_file(file, content)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept.json", content)]


CALLS = ("open", "write", "chmod", "fsync", "close", "replace")


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> Iterator[list[str]]:
    """Make call number ``at`` of those that write a file fail; yield the calls until then."""
    made: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            made.append(name)
            if len(made) - 1 == at:
                if name == "close":
                    real(*args)
                raise error
            if name == "write":  # in parts, as a slow disk may do
                return real(args[0], args[1][:2])  # type: ignore[index]
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield made


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_failure_at_any_call_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None, error: BaseException
) -> None:
    file, failed = tmp_path / "kept.json", set()
    for at in range(100):
        file.unlink(missing_ok=True)
        if old is not None:
            file.write_bytes(old)
        ended: BaseException | None = None
        with failing(monkeypatch, at, error) as made:
            try:
                replace_file(file, b"newer")
            except (OSError, KeyboardInterrupt) as caught:
                ended = caught
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        if ended is None or "replace" in made[:at]:  # then only the folder is flushed
            assert found == {"kept.json": b"newer"}
        else:
            failed.add(made[at])
            assert found == ({} if old is None else {"kept.json": old})
            assert getattr(ended, "filename", str(file)) == str(file)
        if len(made) <= at:
            break
    assert failed == set(CALLS) - ({"chmod"} if old is None else set())


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_a_full_disk_names_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_bytes(b"old")
    code = f"""
import resource, signal
from checkmate.files.disk import replace_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
replace_file({str(file)!r}, b"x" * 10_000)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == f"OSError: [Errno {errno.EFBIG}] File too large: {str(file)!r}"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept.json": b"old"}


def test_a_file_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    for file in (tmp_path / "missing" / "file", tmp_path, tmp_path / "loop", tmp_path / ("n" * 300)):
        if file.name == "loop":
            file.symlink_to(file)
        with pytest.raises(OSError, match=re.escape(repr(str(file)))):
            replace_file(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such permissions")
def test_permissions_are_those_of_open_or_of_the_old_file(tmp_path: Path) -> None:
    file, usual = tmp_path / "new", tmp_path / "usual"
    before = os.umask(0o027)
    try:
        usual.touch()
        replace_file(file, b"new")
        assert file.stat().st_mode == usual.stat().st_mode
        file.chmod(0o604)
        replace_file(file, b"newer")
        assert stat.S_IMODE(file.stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_a_file_that_is_read_only_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kept"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root can write to read-only folders
    with pytest.raises(PermissionError) as caught:
        replace_file(file, b"new")
    assert (caught.value.filename, file.read_bytes()) == (str(file), b"old")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to(Path("folder") / "target")
    replace_file(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert {path.name for path in tmp_path.rglob("*")} == {"folder", "target", "link"}


@pytest.mark.skipif(sys.platform == "win32", reason="no such files")
def test_in_the_cache_folder_the_name_is_replaced_link_or_not(tmp_path: Path) -> None:
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_bytes(b"of another user")
    link.symlink_to(target)
    os.mkfifo(pipe)
    for file in (link, pipe):
        replace_file(file, b"new", follow=False)
        assert stat.S_ISREG(file.lstat().st_mode)
        assert file.read_bytes() == b"new"
    assert target.read_bytes() == b"of another user"


@pytest.mark.skipif(sys.platform == "win32", reason="no such files")
def test_streams_are_written_to_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert is_stream(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(pipe, b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    replace_file(os.devnull, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert not is_stream(tmp_path / "none")


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no such file")
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output_can_be_named(tmp_path: Path, kind: str) -> None:
    code = "from checkmate.files.disk import *; replace_file('/dev/stdout', b'new '); print('end')"
    if kind == "pipe":
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    else:
        with (tmp_path / "log").open("wb") as log:
            subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
        output = (tmp_path / "log").read_bytes()
        assert len(list(tmp_path.iterdir())) == 1
    assert output == b"new end\n"


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for size in (0, 1, 10, 3 * 2**20):
        file.write_bytes(os.urandom(size))
        assert read_file(file, max_size=size) == file.read_bytes()
        with file.open("rb", buffering=0) as stream:
            assert read_stream(stream, "it", max_size=size) == file.read_bytes()
        if size:
            with pytest.raises(FormatError, match=rf"^{re.escape(str(file))}: has .*--max-size or max_size="):
                read_file(file, max_size=size - 1)
            with pytest.raises(FormatError, match=r"^it: more than the "):
                read_stream(io.BytesIO(bytes(size)), "it", max_size=size - 1)


def test_a_file_that_grows_while_it_is_read_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "read", lambda _number, size: bytes(size))
    with pytest.raises(FormatError, match=r"file: more than the limit of 3\.00 MiB"):
        read_file(tmp_path / "file", max_size=3 * 2**20)


@pytest.mark.skipif(sys.platform == "win32", reason="no such files")
def test_only_regular_files_are_read_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe\x1b[2J"
    os.mkfifo(pipe)
    for file in (pipe, Path("/dev/zero"), Path("/dev/null"), Path("/dev/tty")):
        with pytest.raises(
            (FormatError, OSError), match=r"(not a regular file, and may never end: pipe)|/dev/tty"
        ):
            read_file(file)
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        read_file(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_file(tmp_path / "nothing")

"""Outputs are refused before the work if they can't be written, or if two are one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest

from checkmate.cli.options import distinct_files, new_file

OPTION = click.Option(["--output"])


def checked(path: Path) -> Path | None:
    return new_file(click.Context(click.Command("any")), OPTION, path)


@pytest.mark.parametrize("exists", [True, False])
def test_the_folder_must_be_writable_for_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    file = tmp_path / "file"
    if exists:
        file.touch()
    assert checked(file) == file
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)  # root may write anywhere
    with pytest.raises(click.BadParameter, match=r"the folder .* may not be written"):
        checked(file)


@pytest.mark.skipif(sys.platform == "win32", reason="no such files")
def test_the_folder_of_a_link_is_that_of_its_target_and_a_device_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "target")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) not in (tmp_path, Path("/dev")))
    assert checked(link) == link
    assert checked(Path("/dev/null")) == Path("/dev/null")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path / "folder")
    with pytest.raises(click.BadParameter, match=r"the folder .* may not be written"):
        checked(link)


@pytest.mark.parametrize("exists", [True, False])
def test_two_outputs_of_one_name_are_refused(tmp_path: Path, exists: bool) -> None:
    file = tmp_path / "file.html"
    if exists:
        file.touch()
    for other in (file, tmp_path / "folder" / ".." / file.name):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(click.BadParameter, match="another output has the same path") as refused:
            distinct_files(output=file, plot=other)
        assert refused.value.param_hint == "'--plot'"
    distinct_files(output=file, plot=tmp_path / "other.html", third=None)
    distinct_files(output=Path(os.devnull), plot=Path(os.devnull))


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_is_its_target(tmp_path: Path) -> None:
    file, soft, hard = tmp_path / "file", tmp_path / "soft", tmp_path / "hard"
    soft.symlink_to(file)
    with pytest.raises(click.BadParameter, match="another output"):
        distinct_files(output=file, plot=soft)
    file.touch()
    hard.hardlink_to(file)
    with pytest.raises(click.BadParameter, match="another output"):
        distinct_files(output=soft, plot=hard)

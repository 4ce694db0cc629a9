"""The release of PyTorch: too old is refused before anything breaks, too new is said."""

from __future__ import annotations

import logging
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import checkmate_torch
from checkmate.framework import UnsupportedReleaseError
from checkmate_torch import backend
from checkmate_torch.releases import RELEASES, check_installed

PROJECT = Path(__file__).parents[2] / "packages" / "checkmate-torch" / "pyproject.toml"


def test_the_package_asks_for_the_releases_from_the_oldest_to_the_newest_that_was_tried() -> None:
    wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    (oldest, minor), (newest, last) = RELEASES.oldest, RELEASES.tried
    assert f"torch>={oldest}.{minor},<{newest}.{last + 1}" in wanted


@pytest.mark.parametrize("release", ["1.13.1", "2.0.0", "2.9.1+cu128", "2.12.1"])
def test_an_old_release_is_refused_with_the_way_out(release: str) -> None:
    with pytest.raises(UnsupportedReleaseError, match=r"2\.13 or newer.*pip install"):
        RELEASES.check(release)


@pytest.mark.parametrize(
    ("release", "warned"), [("2.13.0+cpu", 0), ("2.15.1", 0), ("2.16.0", 1), ("3.0.0a1", 1)]
)
def test_a_release_that_was_not_tried_is_said(
    release: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "checkmate.framework"):
        RELEASES.check(release)
    assert len(caplog.records) == warned


def test_the_first_use_of_a_name_checks_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate.framework.releases.version", lambda _name: "2.10.0")
    check_installed.cache_clear()
    try:
        with pytest.raises(UnsupportedReleaseError):
            _ = checkmate_torch.compile
    finally:
        check_installed.cache_clear()


def test_dynamo_finds_the_backend_behind_that_check() -> None:
    (entry,) = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["torch_dynamo_backends"].values()
    found = metadata.EntryPoint(name="checkmate", value=entry, group="torch_dynamo_backends").load()
    assert found is backend.checkmate_backend

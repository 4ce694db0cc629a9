"""The installed PyTorch is checked before its first use."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import checkmate_torch
from checkmate.framework import UnsupportedReleaseError
from checkmate_torch.api import backend
from checkmate_torch.releases import RELEASES, check_installed

PROJECT = Path(__file__).parents[2] / "packages" / "checkmate-torch" / "pyproject.toml"


def test_the_package_asks_for_the_releases_from_the_oldest_to_the_newest_that_was_tried() -> None:
    wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    (oldest, minor), (newest, last) = RELEASES.oldest, RELEASES.tried
    assert f"torch>={oldest}.{minor},<{newest}.{last + 1}" in wanted


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

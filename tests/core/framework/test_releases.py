"""The release of a framework: an old one is refused with the way out, a newer one than tested is reported."""

from __future__ import annotations

import logging
import re
from importlib.metadata import PackageNotFoundError

import pytest

from checkmate.framework import Releases, UnsupportedReleaseError

RELEASES = Releases(
    framework="Abacus",
    distributions=("abacus", "abacus-gpu"),
    oldest=(2, 9),
    tried=(2, 15),
    needs=", with beads",
)


@pytest.mark.parametrize("release", ["1.13.1", "2.0.0", "2.8.9+cu128"])
def test_an_old_release_is_refused_with_the_way_out(release: str) -> None:
    expected = (
        f"Abacus 2.9 or newer, with beads; abacus-gpu {release} is installed: pip install 'abacus-gpu>=2.9'"
    )
    with pytest.raises(UnsupportedReleaseError, match=re.escape(expected)):
        RELEASES.check(release, "abacus-gpu")


@pytest.mark.parametrize(
    ("release", "warned"),
    [("2.9.0", 0), ("2.13.0+cpu", 0), ("2.15.1", 0), ("2.16.0", 1), ("3.0.0a1", 1), ("nightly", 0)],
)
def test_a_release_newer_than_tested_is_reported(
    release: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "checkmate.framework"):
        RELEASES.check(release)
    assert len(caplog.records) == warned


def test_the_first_distribution_that_is_installed_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed = {"abacus-gpu": "2.1"}

    def version(distribution: str) -> str:
        if distribution not in installed:
            raise PackageNotFoundError(distribution)
        return installed[distribution]

    monkeypatch.setattr("checkmate.framework.releases.version", version)
    with pytest.raises(UnsupportedReleaseError, match=r"abacus-gpu 2\.1 is installed"):
        RELEASES.check_installed()
    installed.clear()
    with caplog.at_level(logging.INFO, "checkmate.framework"):
        RELEASES.check_installed()
    assert "its release is unknown" in caplog.text

"""The installed release of a framework: one that is too old is refused, one newer than all tested is logged.

The framework packages trace and run steps through names that the frameworks keep private and change between
releases. The release is read from the installed distribution, without importing it, so that an unsupported
one is reported before anything breaks.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from checkmate.errors import CheckmateError

__all__ = ["Releases", "UnsupportedReleaseError"]

_log = logging.getLogger(__name__)


class UnsupportedReleaseError(CheckmateError, RuntimeError):
    """The framework is too old; the message names the releases that work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The supported releases of a framework.

    Attributes:
        framework: its name in messages.
        distributions: names under which it may be installed, the usual one first.
        oldest: major and minor number of the oldest release that works.
        tried: major and minor number of the newest release that the tests ran on.
        needs: what the message about an old release adds, as ``", with Keras 3"``.
        advice: what the warning about a newer release adds.
    """

    framework: str
    distributions: tuple[str, ...]
    oldest: tuple[int, int]
    tried: tuple[int, int]
    needs: str = ""
    advice: str = ""

    def check_installed(self) -> None:
        """Check the release that is installed; one of unknown number passes.

        Raises:
            UnsupportedReleaseError: if it is too old.
        """
        for distribution in self.distributions:
            try:
                return self.check(version(distribution), distribution)
            except PackageNotFoundError:
                continue
        _log.info("%s is installed under an unknown name: its release is unknown", self.framework)
        return None

    def check(self, release: str, distribution: str = "") -> None:
        """Refuse a release that is too old; warn of one that is newer than all that were tested.

        Raises:
            UnsupportedReleaseError: if it is too old.

        >>> releases = Releases(framework="Abacus", distributions=("abacus",), oldest=(2, 1), tried=(2, 3))
        >>> releases.check("2.3.0+cpu")
        >>> releases.check("2.0")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        checkmate.framework.releases.UnsupportedReleaseError: Checkmate needs Abacus 2.1 or newer; abacus ...
        """
        distribution = distribution or self.distributions[0]
        known = re.match(r"(\d+)\.(\d+)", release)
        found = (int(known[1]), int(known[2])) if known else self.oldest
        oldest, tried = (".".join(map(str, pair)) for pair in (self.oldest, self.tried))
        if found < self.oldest:
            raise UnsupportedReleaseError(
                f"Checkmate needs {self.framework} {oldest} or newer{self.needs}; {distribution} {release} "
                f"is installed: pip install '{distribution}>={oldest}'"
            )
        if found > self.tried:
            _log.warning(
                "%s %s is newer than %s, the newest release that Checkmate was tested with%s",
                distribution,
                release,
                tried,
                self.advice,
            )

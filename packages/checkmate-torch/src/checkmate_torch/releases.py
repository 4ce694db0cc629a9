"""Which releases of PyTorch this works with: OLDEST ≤ release; TRIED is the newest that the tests ran on.

Plans are made and run through names that PyTorch keeps to itself (the joint graph of AOTAutograd and the
roles of its outputs, isolated compilations, bounds of sizes), and that change between releases. To know the
release needs no import of PyTorch, so what is wrong is said before something breaks.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from checkmate import CheckmateError

__all__ = ["UnsupportedReleaseError", "check_installed", "check_release"]

OLDEST = (2, 13)
TRIED = (2, 15)

_log = logging.getLogger(__name__)


class UnsupportedReleaseError(CheckmateError, RuntimeError):
    """PyTorch is too old; the message says which releases work."""


@cache
def check_installed() -> None:
    """Check the PyTorch that is installed, once.

    Raises:
        UnsupportedReleaseError: if it is too old.
    """
    try:
        check_release(version("torch"))
    except PackageNotFoundError:
        _log.info("PyTorch is not installed as a distribution: its release is not known")


def check_release(release: str) -> None:
    """Refuse a release that is too old; warn of one that the tests have not met.

    Raises:
        UnsupportedReleaseError: if it is too old.

    >>> check_release("2.13.0+cpu")
    >>> check_release("2.9.1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    checkmate_torch.releases.UnsupportedReleaseError: Checkmate needs PyTorch 2.13 or newer, 2.9.1 is...
    """
    known = re.match(r"(\d+)\.(\d+)", release)
    if known is None:
        return
    found = (int(known[1]), int(known[2]))
    if found < OLDEST:
        raise UnsupportedReleaseError(
            f"Checkmate needs PyTorch {_name(OLDEST)} or newer, {release} is installed: "
            f"pip install 'torch>={_name(OLDEST)}'"
        )
    if found > TRIED:
        _log.warning(
            "PyTorch %s is newer than %s, the newest that Checkmate was tried with. "
            "'checkmate demo' trains plainly and within a budget, and compares",
            release,
            _name(TRIED),
        )


def _name(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"

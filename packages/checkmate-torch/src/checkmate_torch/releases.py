"""The releases of PyTorch that this package works with.

Plans are made and run through private names of PyTorch (:mod:`checkmate_torch.private`), which change
between releases.
"""

from __future__ import annotations

from functools import cache

from checkmate.framework import Releases

__all__ = ["RELEASES", "check_installed"]

RELEASES = Releases(
    framework="PyTorch",
    distributions=("torch",),
    oldest=(2, 11),
    tried=(2, 15),
    advice=": 'checkmate demo' trains with and without a budget, and compares",
)

check_installed = cache(RELEASES.check_installed)
"""Check the installed PyTorch, once; raises :class:`~checkmate.framework.UnsupportedReleaseError`."""

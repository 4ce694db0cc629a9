"""The least that must work, and nothing but public names: ``nox -s tf`` runs it on the wheels, too.

``CHECKMATE_SITE`` names the folder where those are installed, if they are what is tested.
"""

from __future__ import annotations

import os
from pathlib import Path

import checkmate
import checkmate_tf
from checkmate import tf2

SITE = os.environ.get("CHECKMATE_SITE")


def test_what_is_tested_is_what_was_installed() -> None:
    for package in (checkmate, checkmate_tf):
        assert SITE is None or Path(str(package.__file__)).is_relative_to(SITE)


def test_the_face_has_every_public_name() -> None:
    assert [name for name in checkmate_tf.__all__ if not hasattr(tf2, name)] == []

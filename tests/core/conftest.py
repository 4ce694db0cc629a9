"""A function that replaces the installed plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from checkmate.plugins import reset


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that replaces the installed plugins; the built-in ones stay.

    It takes tuples (name of the plugin, function that loads it, distribution); the distribution is by default
    called as the plugin, and its version is 1.0.
    """
    real = metadata.entry_points

    def plug(*plugins: tuple[Any, ...]) -> None:
        found = [
            SimpleNamespace(name=name, load=load, dist=SimpleNamespace(name=(*rest, name)[0], version="1.0"))
            for name, load, *rest in plugins
        ]
        monkeypatch.setattr(
            metadata,
            "entry_points",
            lambda **query: found if query == {"group": "checkmate"} else real(**query),
        )
        monkeypatch.delenv("CHECKMATE_PLUGINS", raising=False)
        reset()

    yield plug
    reset()

"""The reference of PyTorch's interface has every public name, parameter and setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import checkmate_torch

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pytorch.md"


def test_all_that_is_public_is_documented(undocumented: Callable[[ModuleType, Path], list[str]]) -> None:
    assert undocumented(checkmate_torch, PAGE) == []

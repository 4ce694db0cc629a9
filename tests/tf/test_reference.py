"""The reference of TensorFlow's interface has every public name, parameter and setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import checkmate_tf

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tensorflow.md"


def test_all_that_is_public_is_documented(undocumented: Callable[[ModuleType, Path], list[str]]) -> None:
    assert undocumented(checkmate_tf, PAGE) == []

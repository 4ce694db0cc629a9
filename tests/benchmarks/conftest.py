"""A process of its own for what counts all tensors of its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steps import process


@pytest.fixture
def printed() -> Callable[[str], Any]:
    """Code, run in another process ↦ the JSON of the last line that it prints."""

    def run(code: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    return run

"""The same laws without machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

SOLVER = "test_local_search.py"


@pytest.mark.skipif(bool(vars(numba.config)["DISABLE_JIT"]), reason="it runs itself")
def test_all_of_this_folder_and_the_solver_pass_without_the_compiler() -> None:
    here = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", here, here.parent / SOLVER],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout

"""The C files and the Python ones agree; where a check of each access is compiled in, the same laws hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkmate import generators
from checkmate_solvers.machine import arrays
from checkmate_solvers.machine.arrays import State, state_of
from checkmate_solvers.machine.library import open_library

MACHINE = Path(arrays.__file__).parent
SOURCE = MACHINE / "search.c"
CHECKS = (
    *("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Wconversion", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fPIC", "-shared"),
)
SOLVER = "test_local_search.py"

needs_sources = pytest.mark.skipif(not SOURCE.exists(), reason="a wheel has no C files")


@needs_sources
def test_c_reads_the_arrays_in_the_order_in_which_they_are_made() -> None:
    text = (MACHINE / "state.h").read_text(encoding="utf-8")
    struct = re.search(r"typedef struct \{(.*?)\} State;", text, re.DOTALL)
    assert struct is not None
    fields = [
        (name.strip(" *"), kind)
        for kind, names in re.findall(r"(Int|double|bool) ([^;]*);", struct[1])
        for name in names.split(",")
    ]
    state = state_of(generators.unet(2), fixed_order=True, seed=0)
    kinds = {np.dtype(np.int64): "Int", np.dtype(np.float64): "double", np.dtype(np.bool_): "bool"}
    assert fields == [(name, kinds[getattr(state, name).dtype]) for name in State._fields[:-1]]
    assert all(array.flags.c_contiguous for array in state)
    for entries in re.findall(r"enum \{ ([A-Z_, ]+) \};", text):
        names = entries.split(", ")
        assert [getattr(arrays, name) for name in names] == list(range(len(names)))


@needs_sources
def test_the_library_is_not_older_than_its_sources() -> None:
    newest = max(path.stat().st_mtime for path in (*MACHINE.glob("*.h"), SOURCE))
    compiled = (MACHINE / "libsearch.so.1").stat().st_mtime
    assert newest <= compiled, "pip install -e packages/checkmate-solvers compiles it again"


def test_a_library_of_another_system_is_named(tmp_path: Path) -> None:
    (tmp_path / "library").write_bytes(b"MZ")
    with pytest.raises(ImportError, match="the local search is not compiled, or not for this system"):
        open_library(tmp_path / "library")


@needs_sources
@pytest.mark.skipif("CHECKED_LIBRARY" in os.environ, reason="it runs itself")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the checks are gcc's")
def test_no_access_is_outside_of_an_array(tmp_path: Path) -> None:
    """Run this folder and the solver's tests with gcc's checks of addresses and of arithmetic."""
    library, here = tmp_path / "library", Path(__file__).parent
    subprocess.run(["gcc", *CHECKS, SOURCE, "-o", library, "-lm"], check=True)
    checker = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", here, here.parent / SOLVER],
        env={
            **os.environ,
            "CHECKED_LIBRARY": str(library),
            "LD_PRELOAD": checker.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert " passed" in run.stdout

"""Compiles the local search, which is in C, when a wheel or an editable install is built.

The library lies beside its sources then, and in the wheel. It knows nothing of Python: one wheel serves all
versions of Python on a platform.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

MACHINE = Path("src", "checkmate_solvers", "machine")
LIBRARY = MACHINE / "libsearch.so.1"  # no file name of a Python module, as "libsearch.so" would be
FLAGS = (
    *("-std=c11", "-O3", "-fPIC", "-shared"),
    "-fno-semantic-interposition",  # functions may be inlined, although tests call them by name
    "-ffp-contract=off",  # the same results on every processor
)


class CustomBuildHook(BuildHookInterface[Any]):  # type: ignore[misc]  # hatchling is there in builds only
    """Runs before the files of a wheel are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the platform in the wheel's tag."""
        compiler = shlex.split(os.environ.get("CC", "cc"))
        command = [*compiler, *FLAGS, str(MACHINE / "search.c"), "-o", str(LIBRARY), "-lm"]
        try:
            subprocess.run(command, cwd=self.root, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"checkmate-solvers is built by a C compiler, gcc or clang; $CC may name it: {error}")
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(platform_tags())}"

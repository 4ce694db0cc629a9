"""The conditions of a measurement: machine, versions, commit, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["SOLVING", "session"]

SOLVING = ("checkmate-core", "checkmate-solvers", "numpy", "scipy", "ortools")
"""The distributions on whose versions the answers of solvers depend."""


def session(
    script: str, arguments: Sequence[str], seeds: Sequence[int], packages: Sequence[str] = SOLVING
) -> dict[str, Any]:
    """Facts about a run that starts now.

    Args:
        script: its path in the repository.
        arguments: of the command line; absolute paths are shortened to their last part.
        seeds: of the run.
        packages: distributions whose versions are recorded.
    """
    said = [Path(word).name if word.startswith("/") else word for word in arguments]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", script, *said]),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "seeds": list(seeds),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = {line.split(":")[1].strip() for line in lines if line.startswith("model name")}
    return ", ".join(sorted(models)) or platform.processor()


def _memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, with ``-dirty`` if tracked files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None

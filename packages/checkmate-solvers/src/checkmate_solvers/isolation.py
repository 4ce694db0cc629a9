"""Starting Python so that it runs no code from the current folder, whose files are not trusted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import checkmate

__all__ = ["isolated_python"]


def isolated_python(program: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``program``, Python source, in a fresh interpreter, and its environment.

    The interpreter imports from where this one does, except from relative folders and the current one, which
    may hold a hostile ``json.py``. The current folder is taken only if our own packages lie there, and then
    last.
    """
    given = [folder for folder in map(os.fsdecode, sys.path) if os.path.isabs(folder)]
    taken = [folder for folder in given if not (os.path.exists(folder) and os.path.samefile(folder, "."))]
    ours = [str(Path(file).parents[1]) for file in (__file__, checkmate.__file__)]
    path = [folder for folder in dict.fromkeys([*taken, *ours]) if os.pathsep not in folder]
    return [sys.executable, "-P", "-c", program], os.environ | {"PYTHONPATH": os.pathsep.join(path)}

"""Make an environment of some installed distributions, what they require, and nothing else.

``python alone.py FOLDER NAME …`` links them into FOLDER from the environment that runs it, which has more.
That takes no time; installing PyTorch for each distribution of ours takes minutes.
"""

from __future__ import annotations

import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def required(names: Iterable[str]) -> Iterator[metadata.Distribution]:
    """The distributions of these names, and all that they require, with the extras that they name."""
    wanted, seen = [Requirement(name) for name in names], set()
    while wanted:
        requirement = wanted.pop()
        distribution = metadata.distribution(requirement.name)
        yield distribution
        for extra in {"", *requirement.extras} - {extra for name, extra in seen if name == distribution.name}:
            seen.add((distribution.name, extra))
            needs = map(Requirement, distribution.requires or ())
            wanted += [n for n in needs if n.marker is None or n.marker.evaluate({"extra": extra})]


def link(distribution: metadata.Distribution, folder: Path) -> None:
    """Link the modules of a distribution, and write its commands."""
    here = Path(sysconfig.get_path("purelib"))
    base = {"base": str(folder), "platbase": str(folder)}
    there, commands = (Path(sysconfig.get_path(path, "venv", base)) for path in ("purelib", "scripts"))
    for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        if not (there / name).exists():
            (there / name).symlink_to(here / name)
    for entry in distribution.entry_points.select(group="console_scripts"):
        command = commands / entry.name
        command.write_text(f"#!{commands}/python\nfrom {entry.module} import {entry.attr}\n{entry.attr}()\n")
        command.chmod(0o755)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    venv.create(target)
    for found in required(sys.argv[2:]):
        link(found, target)

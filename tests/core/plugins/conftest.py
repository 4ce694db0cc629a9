"""Real distributions for the tests: metadata and modules in a folder, as after an installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PROJECTS = {
    "sample": TESTS / "sample_plugin",
    **{path.name: path for path in (TESTS / "broken_plugins").iterdir() if path.is_dir()},
}

Run = Callable[..., str]


def install(project: Path, target: Path) -> None:
    """Do as ``pip install --target`` with a pure Python project, offline and without building."""
    settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = settings["name"], settings["version"]
    shutil.copytree(project / "src", target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = target / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{key} = {value}" for key, value in entries.items())
        for group, entries in settings["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each project, to put on the path."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PROJECTS}
    for name, folder in folders.items():
        install(PROJECTS[name], folder)
    return folders


@pytest.fixture
def run(sites: dict[str, Path]) -> Run:
    """Run Python code in a process in which the named plugins are installed, and only they are loaded."""

    def run(code: str, *plugins: str, only: str | None = None) -> str:
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        environment = os.environ | {
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([*(str(sites[name]) for name in plugins), *inherited]),
            "CHECKMATE_PLUGINS": ",".join(plugins) if only is None else only,
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run

"""``import checkmate`` is light; framework interfaces and functions are found in every way of importing."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from checkmate.errors import install_hint

HEAVY = ("torch", "tensorflow", "scipy", "click", "rich", "matplotlib", "hypothesis", "pytest")


def python(code: str, path: Path | None = None) -> str:
    """Output of the code in a fresh process; ``path`` is put first on its module path."""
    prelude = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def package(folder: Path, name: str, code: str) -> Path:
    """A package on disk with this ``__init__``."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    return folder


def test_import_checkmate_loads_no_framework() -> None:
    code = f"import sys, checkmate; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize(
    "imports",
    [
        "import checkmate",
        "import checkmate.simulate",
        "import checkmate.simulate as judge; import checkmate",
        "from checkmate.simulate import Timeline; import checkmate",
        "import checkmate.heuristics.chen, checkmate.plugins, checkmate.solving.api, checkmate.cli",
        "import importlib; importlib.import_module('checkmate.simulate'); import checkmate",
        "from checkmate import *; import checkmate, checkmate.simulate",
    ],
)
def test_simulate_is_always_the_function(imports: str) -> None:
    code = f"""
{imports}
graph = checkmate.DFGraph.from_nodes(cost=[1], size=[3], deps=[[]])
print(checkmate.simulate(graph, checkmate.Schedule.of([checkmate.Compute(0)])).peak)
"""
    assert python(code) == "3"


def test_public_names() -> None:
    code = """
import checkmate
assert all(hasattr(checkmate, name) for name in checkmate.__all__)
assert set(checkmate.__all__) <= set(dir(checkmate))
for name in ("heuristics", "plugins", "report", "testing"):
    assert getattr(checkmate, name).__name__ == "checkmate." + name
try:
    checkmate.slove
except AttributeError as error:
    print(checkmate.__version__, error)
"""
    version = metadata.version("checkmate-core")
    assert python(code) == f"{version} module 'checkmate' has no attribute 'slove'"


DOORS = [
    "import checkmate.{face} as f",
    "import checkmate; f = checkmate.{face}",
    "from checkmate import {face} as f",
]
FACES = [("torch", "checkmate_torch", "checkmate-torch"), ("tf2", "checkmate_tf", "checkmate-tf")]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("face", "module", "distribution"), FACES)
def test_a_missing_distribution_says_how_to_get_it(
    face: str, module: str, distribution: str, door: str
) -> None:
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import checkmate
try:
    exec({door.format(face=face)!r})
except checkmate.MissingDistributionError as error:
    assert isinstance(error, ImportError) and error.name == {module!r} and error.__cause__ is None
    print(error)
"""
    message = f"'checkmate.{face}' needs the '{distribution}' distribution: {install_hint(distribution)}"
    assert python(code) == message


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("face", "module", "distribution"), FACES)
def test_a_face_is_what_its_distribution_exports(
    tmp_path: Path, face: str, module: str, distribution: str, door: str
) -> None:
    path = package(tmp_path, module, "__all__ = ['compile']\ndef compile(): return 'compiled'\nhidden = 1\n")
    code = f"{door.format(face=face)}; print(f.compile(), f.__all__, hasattr(f, 'hidden'))"
    assert python(code, path) == "compiled ['compile'] False"


@pytest.mark.parametrize(("face", "module", "distribution"), FACES)
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('half installed')", "ValueError: half installed"),
    ],
)
def test_a_broken_distribution_shows_its_own_error(
    tmp_path: Path, face: str, module: str, distribution: str, body: str, shown: str
) -> None:
    path = package(tmp_path, module, body)
    code = f"""
import checkmate
try:
    checkmate.{face}
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    assert python(code, path) == shown

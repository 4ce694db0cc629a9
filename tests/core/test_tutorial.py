"""The tutorial is true: its files are those of the sample plugin, its counterexample is pytest's output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "sample_plugin"
TUTORIAL = (ROOT / "docs" / "tutorial" / "write-a-solver-plugin.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", TUTORIAL, flags=re.DOTALL))


def test_it_shows_every_file_of_the_sample_plugin() -> None:
    assert set(FILES) == {"src/checkmate_sample.py", "pyproject.toml", "test_conformance.py"}


@pytest.mark.parametrize("name", FILES)
def test_the_tutorial_shows_the_files_that_are_installed_and_tested(name: str) -> None:
    assert (SAMPLE / name).read_text() == FILES[name]


def test_the_wrong_claim_of_an_optimum_is_reported(tmp_path: Path) -> None:
    proud = re.search(r"```python\n(class Proud.*?)```", TUTORIAL, flags=re.DOTALL)
    shown = re.search(r"```text\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    assert proud is not None
    assert shown is not None
    test = tmp_path / "test_proud.py"
    test.write_text(
        "from checkmate import Problem, Solution\n"
        "from checkmate.testing import SolverConformance\n"
        "from checkmate_sample import Luck\n\n"
        f"{proud[1]}\n\n"
        "class TestProud(SolverConformance):\n"
        "    def solver(self) -> Proud:\n"
        "        return Proud(tries=20)\n"
    )
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "checkmate.testing.plugin",
        "--checkmate-examples",
        "40",
        "-k",
        "optimal_is_optimal",
        test.name,
    )
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed" in done.stdout, done.stdout
    assert shown[1] in done.stdout

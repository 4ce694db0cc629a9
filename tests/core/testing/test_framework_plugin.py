"""The how-to about framework plugins is true: its files are those of examples/tape, its output is real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from checkmate_tape import TapeExecutor, Trial
from numpy_tape import Call, network

from checkmate.testing import ExecutorConformance

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "tape"
PAGE = (ROOT / "docs" / "how-to" / "write-a-framework-plugin.md").read_text(encoding="utf-8")
FILES = ["src/numpy_tape.py", "src/checkmate_tape.py", "pyproject.toml"]


def test_it_shows_all_of_the_plugin() -> None:
    shown = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", PAGE, flags=re.DOTALL)
    for file in FILES:
        parts = [text for name, text in shown if name == file]
        assert "\n\n".join(parts) == (EXAMPLE / file).read_text(encoding="utf-8"), file
    assert {name for name, _ in shown} == set(FILES)


def test_the_plugin_is_short() -> None:
    assert len((EXAMPLE / "src" / "checkmate_tape.py").read_text(encoding="utf-8").splitlines()) < 150


def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    few = os.environ | {"PATH": path, "COLUMNS": "100", "PYTEST_ADDOPTS": "--checkmate-examples=2"}
    sessions = re.findall(r"```console\n\$ (.*?)\n(.*?)```\n", PAGE, flags=re.DOTALL)
    assert [command.split()[0] for command, _ in sessions] == ["pytest", *["checkmate"] * 3]
    for command, shown in sessions:
        done = subprocess.run(
            command.split(),
            cwd=tmp_path,
            env=few,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert lasting(done.stdout) == lasting(shown), done.stdout


def lasting(output: str) -> list[str]:
    """Its words without times, lines of tables, and the number of checks of other kinds of plugins."""
    timeless = re.sub(r"\b0\.\d+|\d+\.\d+s\b|\S+e-\d\d|\d+ items|\d+ deselected", "#", output)
    return [word for word in timeless.split() if not re.fullmatch(r"[=─-╿]+", word)]


class Hoards(TapeExecutor):
    def compute(self, call: Call, held: dict[int, Any], watch: Any) -> None:
        self.last_read = [held[t] for t in call.reads]
        super().compute(call, held, watch)


class CaseOfHoards(ExecutorConformance):
    examples = 1
    trial = Trial("shallow", partial(network, 1))

    def executor(self) -> Hoards:
        return Hoards()


def test_an_array_that_is_kept_alive_is_reported_as_shown(failing) -> None:
    shown = re.search(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert shown is not None
    law = "holds_what_the_simulator_counts"
    assert failing(CaseOfHoards(), law)[law].startswith(shown[1])

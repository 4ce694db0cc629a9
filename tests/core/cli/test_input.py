"""The input of commands: regular files up to a limit, or standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from checkmate.errors import CheckmateError

Checkmate = Callable[..., Result]
READERS = {
    "show": [],
    "solve": ["--budget", "100%", "--solver", "keep-all"],
    "sweep": ["--budgets", "100%", "--solver", "keep-all"],
}


@pytest.mark.parametrize("command", READERS)
def test_a_graph_can_come_from_standard_input(checkmate: Checkmate, graph: Path, command: str) -> None:
    piped = checkmate(command, "-", *READERS[command], "--json", input=graph.read_bytes())
    assert piped.exit_code == 0
    assert '"chain"' in piped.stdout or command == "solve"
    broken = checkmate(command, "-", *READERS[command], input=graph.read_bytes()[:-1])
    assert (broken.exit_code, broken.stdout) == (2, "")
    assert broken.stderr.startswith("Error: <st")


@pytest.mark.parametrize("command", ["show", "simulate"])
def test_graph_or_schedule_can_be_standard_input_but_not_both(
    checkmate: Checkmate, graph: Path, schedule: Path, command: str
) -> None:
    assert checkmate(command, "-", schedule, input=graph.read_bytes()).exit_code == 0
    assert checkmate(command, graph, "-", input=schedule.read_bytes()).exit_code == 0
    both = checkmate(command, "-", "-", input=graph.read_bytes())
    assert (both.exit_code, "standard input can be read only once" in both.stderr) == (2, True)


def test_a_closed_standard_input_is_bad_input(checkmate: Checkmate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate.cli.options.sys", type("sys", (), {"stdin": None}))
    assert "standard input is closed" in checkmate("show", "-").stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no such files")
def test_pipes_and_devices_are_not_read(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        for arguments in (["simulate", graph, path], ["simulate", path, graph], ["show", path]):
            result = checkmate(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr == (
                f"Error: {path}: it is not a regular file, and may never end: "
                "pipe it to the command, and call it '-'\n"
            )


@pytest.mark.parametrize("piped", [True, False])
@pytest.mark.parametrize("command", READERS)
def test_a_large_input_is_refused_until_the_limit_is_raised(
    checkmate: Checkmate, graph: Path, command: str, piped: bool
) -> None:
    size = graph.stat().st_size
    asked = [command, "-" if piped else graph, *READERS[command], "--max-size"]
    refused = checkmate(*asked, size - 1, input=graph.read_bytes())
    assert (refused.exit_code, "--max-size" in refused.stderr) == (2, True)
    assert checkmate(*asked, f"{size}B", input=graph.read_bytes()).exit_code == 0
    nonsense = checkmate(*asked, "60%")
    assert (nonsense.exit_code, "'60%' is not a size" in nonsense.stderr) == (2, True)


@pytest.mark.parametrize("error", [MemoryError(), CheckmateError("too much")])
def test_too_little_memory_is_bad_input_and_not_infeasible(
    checkmate: Checkmate, graph: Path, schedule: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("checkmate.files.serialize.read_file", fail)
    for arguments in (["simulate", graph, schedule], ["solve", graph, "--budget", "100%"]):
        result = checkmate(*arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert result.stderr.startswith("Error: t")

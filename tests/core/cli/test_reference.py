"""The reference page agrees with the commands: options, examples, keys of JSON."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result

from checkmate.cli.app import app

Checkmate = Callable[..., Result]
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"
COMMANDS = ["cache", "doctor", "plugins", "run", "show", "simulate", "solve", "sweep", "trace"]


@pytest.fixture
def factories(tmp_path: Path, layers: None) -> Iterator[None]:
    """The programs that the examples trace and run."""
    for name in ("package/module.py", "train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def factory():\n    return 8\n\nstep = factory\n")
    yield
    for name in ("package.module", "package", "train"):
        sys.modules.pop(name, None)
    sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path)]


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """The text of each command's section."""
    parts = re.split(r"^## checkmate (\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def examples(text: str) -> list[list[str]]:
    """The arguments of every command in the page's or a help's examples."""
    return [shlex.split(line)[1:] for line in re.findall(r"^ *(checkmate .*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented_and_no_other(sections: dict[str, str], command: str) -> None:
    rows = re.findall(r"^\| (`-.*?) \|", sections[command], re.MULTILINE)
    told = {option for row in rows for option in re.findall(r"`(-[\w-]+)`", row)}
    options = [p for p in app.commands[command].params if isinstance(p, click.Option)]
    offered = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    assert told == offered | {"-h", "--help"}


@pytest.mark.usefixtures("graph", "schedule", "factories")
def test_every_example_of_the_page_works(
    checkmate: Checkmate, sections: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schedule.json").unlink()
    blocks = re.findall(r"^```sh$(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    tried = examples("\n".join(blocks))
    others = {"demo", "export", "fit", "judge", "selfcheck"}  # of other distributions
    assert {arguments[0] for arguments in tried} == {*COMMANDS} == {*sections} - others
    for arguments in tried:
        result = checkmate(*arguments)
        assert result.exit_code == 0, f"{arguments}: {result.output}"


@pytest.mark.usefixtures("graph", "schedule", "factories")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_of_the_help_works(
    checkmate: Checkmate, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tried = examples(checkmate(command, "--help").stdout)
    assert len(tried) >= 2
    for arguments in tried:
        if any(argument.endswith((".svg", ".png")) for argument in arguments):
            pytest.importorskip("matplotlib")
        result = checkmate(*arguments)
        assert result.exit_code == 0, f"{arguments}: {result.output}"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("cache", ["info"]),
        ("doctor", []),
        ("plugins", []),
        ("run", ["--torch", "train:step", "schedule.json", "--graph", "graph.json"]),
        ("show", ["graph.json"]),
        ("simulate", ["graph.json", "schedule.json"]),
        ("solve", ["graph.json", "--budget", "80%", "--solver", "heuristics"]),
        ("sweep", ["graph.json", "--budgets", "80%", "--solver", "heuristics"]),
        ("trace", ["--torch", "train:step", "-o", "traced.json"]),
    ],
)
@pytest.mark.usefixtures("graph", "schedule", "factories")
def test_the_keys_of_json_are_documented(
    checkmate: Checkmate,
    sections: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = re.findall(r"^\| `--json` \| (.*) \|$", sections[command], re.MULTILINE)
    (keys,) = re.findall(r"^keys `([^`]*)`", row)
    assert keys.split(", ") == list(json.loads(checkmate(command, *arguments, "--json").stdout))


def test_the_exit_codes_are_documented() -> None:
    told = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert told == ["0", "1", "2", "130", "141"]


def test_the_index_links_the_page() -> None:
    assert "(reference/command-line.md)" in (PAGE.parents[1] / "index.md").read_text(encoding="utf-8")

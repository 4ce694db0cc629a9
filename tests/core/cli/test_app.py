"""The command line as a whole: plugins' commands, errors as one clear line, bad files, pipes and Ctrl-C."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from checkmate import CheckmateError, __version__
from checkmate.cli import main
from checkmate.cli.app import App, app
from checkmate.cli.commands.solve import solve
from checkmate.errors import install_hint
from checkmate.plugins import hookimpl

Checkmate = Callable[..., Result]
COMMANDS = ["doctor", "plugins", "run", "show", "simulate", "solve", "sweep", "trace"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_with_examples_and_exit_codes(checkmate: Checkmate, command: str) -> None:
    text = checkmate(command, "--help").stdout
    assert re.search(rf"^  Examples:\n    checkmate {command} ?", text, re.MULTILINE)
    assert "Exit code" in text
    assert "--json" in text


def test_all_commands_are_listed(checkmate: Checkmate) -> None:
    listed = checkmate("--help").stdout
    assert [name for name in COMMANDS if f"\n  {name} " in listed] == COMMANDS


def corrupted(**changes: object) -> bytes:
    """A small graph file with some values replaced."""
    graph = {
        "format": "checkmate.graph",
        "version": 1,
        "tensors": [{"name": "a", "size": 4}, {"name": "b", "size": 4}],
        "ops": [
            {"name": "first", "inputs": [], "outputs": [0], "cost": 1.0},
            {"name": "second", "inputs": [0], "outputs": [1], "cost": 1.0},
        ],
        "inputs": [],
        "outputs": [1],
    }
    return json.dumps(graph | changes).encode()


FIRST, SECOND = json.loads(corrupted())["ops"]
BAD_FILES = {
    "no format": (b"{}", "missing required field `format`"),
    "newer": (b'{"format": "checkmate.graph", "version": 9}', "version 9"),
    "truncated": (b'{"format": "checkmate.graph"', "truncated"),
    "empty": (b"", ""),
    "garbage": (bytes(range(256)) * 4, ""),
    "half a character": (b'{"format": "\xff"}', ""),
    "deep": (b"[" * 100_000, ""),
    "a schedule": (b'{"format": "checkmate.schedule", "version": 1}', "not a 'checkmate.graph'"),
    "a cycle": (corrupted(ops=[FIRST | {"inputs": [1]}, SECOND]), "a cycle, or ops out of"),
    "reads what it makes": (corrupted(ops=[FIRST | {"inputs": [0]}, SECOND]), "$.ops[0] ('first')"),
    "negative size": (corrupted(tensors=[{"name": "a", "size": -4}, {"name": "b", "size": 4}]), "size"),
    "negative cost": (corrupted(ops=[FIRST | {"cost": -1}, SECOND]), "$.ops[0].cost"),
    "cost nan": (corrupted(ops=[FIRST | {"cost": float("nan")}, SECOND]), ""),
    "half a byte": (corrupted(tensors=[{"name": "a", "size": 0.5}, {"name": "b", "size": 4}]), "size"),
    "dangling": (corrupted(ops=[FIRST, SECOND | {"inputs": [7]}]), "7"),
}


def test_the_small_graph_itself_is_fine(checkmate: Checkmate, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(corrupted())
    assert checkmate("show", tmp_path / "graph.json").exit_code == 0


@pytest.mark.parametrize("command", [["solve", "--budget", "1GiB"], ["show"], ["sweep", "--budgets", "50%"]])
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_exit_2_and_one_line(
    checkmate: Checkmate, tmp_path: Path, command: list[str], name: str
) -> None:
    content, complaint = BAD_FILES[name]
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    result = checkmate(command[0], path, *command[1:])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {path}: ")
    assert complaint in line


@pytest.mark.parametrize("command", [["solve", "--budget", "1"], ["show"], ["sweep", "--budgets", "50%"]])
def test_a_missing_file_or_a_folder_is_exit_2(
    checkmate: Checkmate, tmp_path: Path, command: list[str]
) -> None:
    for path, complaint in ((tmp_path / "none.json", "does not exist"), (tmp_path, "is a directory")):
        result = checkmate(command[0], path, *command[1:])
        assert result.exit_code == 2
        assert complaint in result.stderr
        assert str(path) in result.stderr


def test_a_bad_schedule_is_exit_2(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    for content in (b"", b"\x00\xff", b"{}", graph.read_bytes()):
        path.write_bytes(content)
        for command in ("simulate", "show"):
            result = checkmate(command, graph, path)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr.startswith(f"Error: {path}: ")


def test_demo_says_which_distribution_it_needs(checkmate: Checkmate) -> None:
    result = checkmate("demo")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: 'checkmate demo' needs the 'checkmate-torch' distribution: "
        f"{install_hint('checkmate-solvers checkmate-torch[demo]')}\n"
    )


def test_demo_of_a_broken_distribution_shows_its_error(
    checkmate: Checkmate, plug: Callable[..., None]
) -> None:
    def broken() -> None:
        raise OSError("libfoo.so")

    plug(("torch", broken, "checkmate-torch"))
    result = checkmate("demo")
    assert result.exit_code == 2
    assert "'torch' (checkmate-torch 1.0), which failed: OSError: libfoo.so" in result.stderr


class Climber:
    @staticmethod
    @hookimpl
    def checkmate_register_commands(cli: click.Group) -> None:
        cli.add_command(click.Command("climb", callback=lambda: click.echo("up"), help="Go up."))


class Usurper:
    @staticmethod
    @hookimpl
    def checkmate_register_commands(cli: click.Group) -> None:
        cli.add_command(click.Command("solve", callback=lambda: click.echo("mine now")))


def test_commands_of_plugins_are_added_and_know_their_owner(plug: Callable[..., None]) -> None:
    plug(("k2", lambda: Climber), ("usurper", lambda: Usurper))
    group = App(name="checkmate")
    group.add_command(click.Command("solve", callback=lambda: click.echo("ours")))
    runner = CliRunner()
    assert runner.invoke(group, ["climb"]).stdout == "up\n"
    assert runner.invoke(group, ["solve"]).stdout == "ours\n"
    assert group.command_owners() == {"climb": "'k2' (k2 1.0)"}
    assert "climb" in runner.invoke(group, ["--help"]).stdout


def test_a_plugin_can_not_replace_a_built_in_command(checkmate: Checkmate, plug: Callable[..., None]) -> None:
    plug(("usurper", lambda: Usurper))
    listed = checkmate("--help")
    assert listed.exit_code == 0
    assert "'usurper' (usurper 1.0) failed to add its commands: PluginError: there is" in listed.stderr
    assert app.commands["solve"] is solve


def test_errors_of_a_plugins_command(plug: Callable[..., None]) -> None:
    class Faller:
        @staticmethod
        @hookimpl
        def checkmate_register_commands(cli: click.Group) -> None:
            @cli.command()
            @click.argument("kind")
            def fall(kind: str) -> None:
                raise CheckmateError("no rope") if kind == "ours" else ZeroDivisionError

    plug(("faller", lambda: Faller))
    group = App(name="checkmate")
    ours = CliRunner().invoke(group, ["fall", "ours"])
    assert (ours.exit_code, ours.stderr) == (2, "Error: no rope\n")
    assert isinstance(CliRunner().invoke(group, ["fall", "its"]).exception, ZeroDivisionError)


def test_an_unknown_command_is_exit_2(checkmate: Checkmate) -> None:
    result = checkmate("slove")
    assert result.exit_code == 2
    assert "No such command 'slove'" in result.stderr


def test_version(checkmate: Checkmate) -> None:
    assert checkmate("--version").stdout == f"checkmate, version {__version__}\n"


def test_ctrl_c_in_any_command_is_one_line(checkmate: Checkmate, plug: Callable[..., None]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    plug(("any", interrupted))
    result = checkmate("plugins")
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


def test_the_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the command line's reference says."""
    monkeypatch.setattr(sys, "argv", ["checkmate"])
    monkeypatch.setenv("_CHECKMATE_COMPLETE", "bash_complete")
    for words, completed in (("checkmate sol", "plain,solve"), ("checkmate solve --bud", "plain,--budget")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().out.split() == [completed]


def test_main_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["checkmate", "--version"])
    for run in (main, lambda: runpy.run_module("checkmate", run_name="__main__")):
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"checkmate, version {__version__}\n"

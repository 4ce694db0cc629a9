"""The command line as a whole: plugins' commands, errors as one clear line, bad files, pipes and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from checkmate import CheckmateError, DFGraph, __version__, write_graph
from checkmate.cli import main
from checkmate.cli.app import app
from checkmate.cli.group import App
from checkmate.cli.solve import solve
from checkmate.plugins import hookimpl, loader, reset

Checkmate = Callable[..., Result]
COMMANDS = ["doctor", "plugins", "show", "simulate", "solve", "sweep"]


def offer(monkeypatch: pytest.MonkeyPatch, *plugins: tuple[str, type]) -> None:
    """Install these plugins, and nothing else."""
    candidates = [loader._Candidate(name, f"{name} 1.0", lambda p=plugin: p) for name, plugin in plugins]
    monkeypatch.setattr(loader, "_candidates", lambda: iter(candidates))
    reset()


def process(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    environment = os.environ | {loader.ENVIRONMENT_VARIABLE: ""} | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


MAIN = "from checkmate.cli import main; main()"


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
    """A small graph file, something in it replaced."""
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
        "pip install 'checkmate-torch[demo]'\n"
    )


def test_demo_of_a_broken_distribution_shows_its_error(
    checkmate: Checkmate, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = loader.LoadedPlugin(
        name="torch", distribution="checkmate-torch 0.1.0", error="OSError: libfoo.so"
    )
    monkeypatch.setattr("checkmate.cli.group.installed_plugins", lambda: (broken,))
    result = checkmate("demo")
    assert result.exit_code == 2
    assert "'torch' (checkmate-torch 0.1.0), which failed: OSError: libfoo.so" in result.stderr


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


def test_commands_of_plugins_are_added_and_know_their_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("k2", Climber), ("usurper", Usurper))
    group = App(name="checkmate")
    group.add_command(click.Command("solve", callback=lambda: click.echo("ours")))
    runner = CliRunner()
    assert runner.invoke(group, ["climb"]).stdout == "up\n"
    assert runner.invoke(group, ["solve"]).stdout == "ours\n"
    assert group.command_owners() == {"climb": "'k2' (k2 1.0)"}
    assert "climb" in runner.invoke(group, ["--help"]).stdout


def test_a_plugin_can_not_replace_a_built_in_command(
    checkmate: Checkmate, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, ("usurper", Usurper))
    listed = checkmate("--help")
    assert listed.exit_code == 0
    assert "'usurper' (usurper 1.0) failed to add its commands: PluginError: there is" in listed.stderr
    assert app.commands["solve"] is solve


def test_errors_of_a_plugins_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faller:
        @staticmethod
        @hookimpl
        def checkmate_register_commands(cli: click.Group) -> None:
            @cli.command()
            @click.argument("kind")
            def fall(kind: str) -> None:
                raise CheckmateError("no rope") if kind == "ours" else ZeroDivisionError

    offer(monkeypatch, ("faller", Faller))
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


@pytest.mark.parametrize(("command", "expected"), [("root", "?n"), ("plugins", "sqrt(n)"), ("show", "####")])
def test_a_terminal_without_our_characters_is_fine(graph: Path, command: str, expected: str) -> None:
    code = """
import sys, click, rich
from checkmate.cli import app, main
app.app.add_command(click.Command("root", callback=lambda: rich.print("√n")))
main()
"""
    arguments = (command, graph) if command == "show" else (command,)
    done = process(code, *arguments, env={"PYTHONIOENCODING": "ascii"})
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    assert expected in out


@pytest.mark.parametrize("absent", ["click", "rich"])
def test_without_the_extra_it_says_how_to_get_it(absent: str) -> None:
    done = process(f"import sys; sys.modules[{absent!r}] = None; {MAIN}")
    assert done.communicate()[1] == (
        "Error: the command line needs click and rich: pip install 'checkmate-core[cli]'\n"
    )
    assert done.returncode == 2


def test_a_module_of_ours_that_lacks_another_is_a_defect() -> None:
    done = process(f"import sys; sys.modules['msgspec'] = None; {MAIN}", "plugins")
    assert "ModuleNotFoundError" in done.communicate()[1]
    assert done.returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="no such terminals")
def test_a_real_terminal_sees_progress_that_goes_away(graph: Path) -> None:
    """stderr is a terminal: lines are drawn, and erased again; stdout is none, and plain."""
    ours, theirs = os.openpty()
    arguments = ("solve", graph, "--budget", "80%", "--solver", "heuristics")
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True, check=True, timeout=60
    )
    seen = os.read(ours, 65536).decode()
    os.close(theirs)
    os.close(ours)
    assert "solving …" in seen
    assert seen.rstrip().endswith("\x1b[2K")  # the line is erased
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="no such signals")
@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "--json"], ["show"], ["show", "--json"]])
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "graph.json"
    write_graph(path, DFGraph.from_nodes(cost=[1], size=[1], deps=[[]]))
    with process(MAIN, *arguments, *([path] if arguments[0] == "show" else [])) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.close()
        assert done.stderr.read() == ""
    assert done.returncode == 141


def installed(folder: Path, name: str, code: str) -> dict[str, str]:
    """Install a plugin of one file there; the environment in which only it is found."""
    site = folder / f"{name}-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text(f"[checkmate]\n{name} = {name}\n")
    (folder / f"{name}.py").write_text(code)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, loader.ENVIRONMENT_VARIABLE: name}


@pytest.mark.skipif(os.name == "nt", reason="no such signals")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_a_sweep_and_its_processes(tmp_path: Path, jobs: str) -> None:
    """The solver, a plugin in a file, says that it works and then sleeps for longer than the test may run."""
    environment = installed(
        tmp_path,
        "sleeper",
        """
import time
from checkmate.plugins import SolverSpec, hookimpl

class Sleeper:
    def solve(self, problem):
        print("asleep", flush=True)
        time.sleep(600)

@hookimpl
def checkmate_register_solvers():
    return [SolverSpec(name="sleeper", summary="sleeps", load=Sleeper)]
""",
    )
    graph = tmp_path / "graph.json"
    write_graph(graph, DFGraph.from_nodes(cost=[1], size=[1], deps=[[]]))
    done = process(
        MAIN,
        *("sweep", graph, "--budgets", "100%,8B", "--solver", "sleeper", "--jobs", jobs),
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run behind &
    )
    assert done.stderr is not None
    assert done.stderr.readline() == "asleep\n"
    os.killpg(done.pid, signal.SIGINT)  # as a terminal does
    _, err = done.communicate()
    assert (done.returncode, err) == (130, "Interrupted after 0 answers: nothing was written.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["plugins"],
        ["solve", "--budget", "100%", "--solver", "noisy"],
        ["sweep", "--budgets", "100%,80%", "--solver", "noisy"],
        ["sweep", "--budgets", "100%,80%", "--solver", "noisy", "--jobs", "2"],
        ["show", "-o", "x.noise"],
    ],
    ids=" ".join,
)
def test_what_plugins_print_does_not_spoil_the_answer(
    graph: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """They print when they are imported and when they work, to stdout and past it; stdout stays JSON."""
    environment = installed(
        tmp_path,
        "noisy",
        """
import os, sys
from checkmate.heuristics import KeepAll
from checkmate.plugins import ExporterSpec, SolverSpec, hookimpl

out = sys.stdout

class Noisy:
    def solve(self, problem):
        noise()
        return KeepAll().solve(problem)

    def write(self, timeline, file, *, budget=None):
        noise()

def noise():
    print("noise")
    print("noise", file=out)
    os.write(1, b"noise")

@hookimpl
def checkmate_register_solvers():
    return [SolverSpec(name="noisy", summary="prints", load=Noisy)]

@hookimpl
def checkmate_register_exporters():
    return [ExporterSpec(name="noisy", summary="prints", suffix=".noise", load=Noisy)]

noise()
""",
    )
    command, *options = arguments
    files = [graph] if command != "plugins" else []
    done = process(MAIN, command, *files, *options, "--json", env=environment, cwd=tmp_path)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0
    assert json.loads(out)
    assert "noise" in err


def test_ctrl_c_while_modules_load_is_one_line() -> None:
    code = f"""
import builtins
real = builtins.__import__
def interrupted(name, *rest):
    if name == "rich" or name.startswith("rich."):
        raise KeyboardInterrupt
    return real(name, *rest)
builtins.__import__ = interrupted
{MAIN}
"""
    done = process(code)
    assert done.communicate()[1] == "Interrupted.\n"
    assert done.returncode == 130


def test_ctrl_c_in_any_command_is_one_line(checkmate: Checkmate, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("checkmate.cli.plugins.installed_plugins", interrupted)
    result = checkmate("plugins")
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


def test_main_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["checkmate", "--version"])
    for run in (main, lambda: runpy.run_module("checkmate.cli", run_name="__main__")):
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"checkmate, version {__version__}\n"

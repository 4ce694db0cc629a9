"""The command line in a process of its own: terminals, pipes, Ctrl-C, and plugins that print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import DFGraph, write_graph
from checkmate.errors import install_hint
from checkmate.plugins import loader

pytestmark = pytest.mark.slow


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
    hint = install_hint("checkmate-core[cli]")
    error = done.communicate()[1]
    assert error.startswith("Error: the command line needs click and rich (ModuleNotFoundError: ")
    assert error.endswith(f"): {hint}\n")
    assert done.returncode == 2


def test_without_the_extra_the_version_and_the_doctor_work() -> None:
    code = f"import sys; sys.modules['click'] = None; {MAIN}"
    told = process(code, "--version").communicate()
    assert told == (f"checkmate, version {checkmate.__version__}\n", "")
    done = process(code, "doctor")
    findings, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    for line in ("ok       checkmate-core: ", "ok       import checkmate: "):
        assert f"\n{line}" in findings


def test_python_runs_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "checkmate", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"checkmate, version {checkmate.__version__}\n"


@pytest.mark.parametrize("broken", ["click", "rich"])
def test_a_broken_part_of_the_extra_is_one_line_too(tmp_path: Path, broken: str) -> None:
    (tmp_path / f"{broken}.py").write_text("raise SystemError('initialization of _internal failed')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = process(MAIN, "plugins", env={"PYTHONPATH": path})
    hint = install_hint("checkmate-core[cli]")
    why = "SystemError: initialization of _internal failed"
    assert done.communicate()[1] == f"Error: the command line needs click and rich ({why}): {hint}\n"
    assert done.returncode == 2


def test_a_module_of_ours_that_lacks_another_is_a_defect() -> None:
    done = process(f"import sys; sys.modules['msgspec'] = None; {MAIN}", "plugins")
    assert "ModuleNotFoundError" in done.communicate()[1]
    assert done.returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="no such terminals")
def test_a_real_terminal_sees_progress_that_goes_away(graph: Path) -> None:
    """stderr is a terminal: lines are drawn, and erased again; stdout is not, and stays plain."""
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
    """Install a plugin of one file; return the environment in which only it is found."""
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
    """The solver, a plugin in a file, reports that it works and then sleeps for longer than the test."""
    environment = installed(
        tmp_path,
        "sleeper",
        """
import os, time
from checkmate.plugins import SolverSpec, hookimpl

class Sleeper:
    def solve(self, problem):
        os.write(1, b"asleep\\n")  # at once: several processes say it
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
    assert [done.stderr.readline() for _ in range(int(jobs))] == ["asleep\n"] * int(jobs)
    os.killpg(done.pid, signal.SIGINT)  # as a terminal does
    _, err = done.communicate()
    assert (done.returncode, err) == (130, "Interrupted after 0 of 2 answers: nothing was written.\n")


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
def test_output_of_plugins_is_kept_out_of_the_answer(
    graph: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """Plugins print to stdout and to its file descriptor when imported and when used; stdout stays JSON."""
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
        file.touch()

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

"""Every command, run in a folder full of hostile files: no process opens or looks up any of them.

An audit hook in every process, children included, records the files that are opened or listed in that folder;
each hostile module records that it ran.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from checkmate import Schedule, generators, write_graph, write_schedule

OTHERS = [
    "_distutils_hack", "antigravity", "checkmate", "checkmate_cli", "checkmate_core", "checkmate_solvers",
    "checkmate_tf", "checkmate_torch", "click", "conftest", "contourpy", "cycler", "dateutil", "fontTools",
    "highspy", "highspy_core", "kiwisolver", "markdown_it", "matplotlib", "mdurl", "msgspec",
    "numpy", "ortools", "packaging", "pandas", "PIL", "pip", "pkg_resources", "platformdirs",
    "pluggy", "pygments", "pyparsing", "pythonrc", "rich", "scipy", "setuptools", "sitecustomize", "six",
    "this", "torch", "usercustomize", "yaml",
]  # fmt: skip
FILES = [
    ".env", ".matplotlib", ".pythonrc", ".pythonrc.py", "checkmate.toml",
    "constraints.txt", "fonts.conf", "matplotlibrc", "ortools.cfg", "pyproject.toml", "python._pth",
    "python311._pth", "pyvenv.cfg", "rich.toml", "setup.cfg", "site.cfg", "style.mplstyle",
]  # fmt: skip
HOOK = """
import os, sys

folder, log = os.environ["HOSTILE_FOLDER"], os.environ["HOSTILE_LOG"]

def note(text):
    with open(log, "a") as lines:
        lines.write(f"{os.getpid()} {text}\\n")

def hook(event, args):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], (str, bytes, os.PathLike)):
        path = os.path.abspath(os.fsdecode(args[0]))
        if path == folder or path.startswith(folder + os.sep):
            note(f"{event} {path}")

note("started")
sys.addaudithook(hook)
"""
SOLVE = ("solve", "GRAPH", "--budget", "60%")
SWEEP = ("sweep", "GRAPH", "--budgets", "60%,80%", "--time-limit", "20")
COMMANDS = {
    "show": ("show", "GRAPH"),
    "show a schedule": ("show", "GRAPH", "SCHEDULE"),
    **{f"show as {name}": ("show", "GRAPH", "SCHEDULE", "-o", f"OUT.{name}")
       for name in ("html", "svg", "png", "dot", "perfetto.json")},
    "simulate": ("simulate", "GRAPH", "SCHEDULE"),
    "solve": (*SOLVE, "-o", "OUT.json"),
    "solve with two threads": (*SOLVE, "--threads", "2"),
    "solve with the paper's MILP": (*SOLVE, "--solver", "checkmate-milp", "--time-limit", "3"),
    "solve with the cache": (*SOLVE, "--solver", "heuristics", "--cache"),
    "sweep": SWEEP,
    "sweep with two jobs": (*SWEEP, "--jobs", "2"),
    "sweep with two jobs of two threads": (*SWEEP, "--jobs", "2", "--threads", "2"),
    **{f"sweep to {name}": (*SWEEP, "--solver", "heuristics", "-o", "OUT.json", "--plot", f"OUT.{name}")
       for name in ("svg", "png")},
    "plugins": ("plugins",),
    "doctor": ("doctor",),
    "help": ("--help",),
}  # fmt: skip
MAY_FAIL = ("doctor", "solve with the paper's MILP")
"""The installation may have a fault; on a busy machine, the MILP may find no schedule in time."""
PROCESSES = {"threads": 2, "jobs": 4}
"""The least number of processes: with ``--jobs 2`` the parent, two workers, and their resource tracker."""

NOT_OURS = ("matplotlibrc",)
"""Files that matplotlib looks for in the current folder when it is imported."""

Run = Callable[..., list[list[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in the hostile folder; return the records of its processes."""
    hostile, hook, log = (tmp_path / name for name in ("hostile", "hook", "log"))
    hostile.mkdir()
    code = f"import os; open({str(log)!r}, 'a').write(f'{{os.getpid()}} ran {{__name__}}\\n')"
    for name in {*sys.stdlib_module_names, *OTHERS}:
        (hostile / f"{name}.py").write_text(code)
    for name in FILES:
        (hostile / name).write_text("")
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    graph = generators.unet(2)
    write_graph(tmp_path / "graph.json", graph)
    schedule = Schedule.from_sequence(graph, range(graph.n_ops))
    write_schedule(tmp_path / "schedule.json", schedule, graph)
    places = {"GRAPH": "graph.json", "SCHEDULE": "schedule.json", "OUT": "out"}

    def run(*command: str | Path, exit_codes: tuple[int, ...] = (0,)) -> list[list[str]]:
        def place(word: str) -> str:
            head, dot, tail = word.partition(".")
            return str(tmp_path / (places[head] + dot + tail)) if head in places else word

        path = os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [place(str(word)) for word in command],
            cwd=hostile,
            env=os.environ
            | {"PYTHONPATH": path, "HOSTILE_FOLDER": str(hostile), "HOSTILE_LOG": str(log)}
            | {"CHECKMATE_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in exit_codes, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        lines = [line.split() for line in log.read_text().splitlines()]
        return [line for line in lines if not line[-1].endswith(NOT_OURS)]

    return run


def test_the_hook_sees_files_that_python_opens(run: Run) -> None:
    lines = run(sys.executable, "-c", "import json", exit_codes=(0, 1))
    first = "json" if sys.version_info < (3, 13) else "linecache"  # which -c reads there, and fails
    seen = {(line[1], Path(line[-1]).name) for line in lines}
    assert {("open", f"{first}.py"), ("ran", first), ("os.listdir", "hostile")} <= seen


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_opens_files_of_the_current_folder(run: Run, name: str) -> None:
    command, exit_codes = COMMANDS[name], (0, 1) if name in MAY_FAIL else (0,)
    lines = run(Path(sysconfig.get_path("scripts")) / "checkmate", *command, exit_codes=exit_codes)
    assert [line for line in lines if line[1:] != ["started"]] == []
    least = max((PROCESSES[word] for word in PROCESSES if f"--{word}" in command), default=1)
    assert len({line[0] for line in lines}) >= least


def test_the_module_is_as_safe_as_the_command_with_python_s_own_flag(run: Run) -> None:
    lines = run(sys.executable, "-P", "-m", "checkmate", *COMMANDS["sweep with two jobs of two threads"])
    assert [line for line in lines if line[1:] != ["started"]] == []
    assert len({line[0] for line in lines}) >= 5

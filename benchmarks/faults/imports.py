"""Broken packages: installed, but failing at import; each in turn, under every command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from checkmate import generators, solve, write_graph, write_schedule
from faults.fault import Fault, FaultClass
from faults.processes import command

__all__ = ["CLASSES"]

_MILP = "checkmate-milp"
_PACKAGES = ("scipy", "ortools", "matplotlib", "rich")
_WAYS = {
    "ImportError": "raise ImportError('libbroken.so.1: cannot open shared object file')",
    "AttributeError": "raise AttributeError(\"module 'numpy' has no attribute 'bool8'\")",
    "SystemError": "raise SystemError('initialization of _internal failed')",
    "SyntaxError": "def broken(",
    "SystemExit": "raise SystemExit(0)",
}
_SOLVE = ("solve", "GRAPH", "--budget", "100%", "--time-limit", "2")
_COMMANDS = {
    "show": ("show", "GRAPH"),
    "show a schedule": ("show", "GRAPH", "SCHEDULE"),
    "show -o html": ("show", "GRAPH", "SCHEDULE", "-o", "OUT.html"),
    "show -o svg": ("show", "GRAPH", "SCHEDULE", "-o", "OUT.svg"),
    "simulate": ("simulate", "GRAPH", "SCHEDULE"),
    "solve with the heuristics": (*_SOLVE, "--solver", "heuristics"),
    "solve with auto": _SOLVE,
    "solve with the paper's MILP": (*_SOLVE, "--solver", _MILP),
    "plugins": ("plugins",),
    "doctor": ("doctor",),
}
_NEEDS = {"show -o svg": {"matplotlib"}, "solve with the paper's MILP": {"scipy", "ortools"}}
"""Packages that a command needs: if one is broken, the exit code is 2 and one line gives the reason."""


def _imports(random: Random, count: int, folder: Path) -> Iterator[Fault]:
    graph = generators.unet(2)
    schedule = solve(graph, "80%", solver="heuristics").schedule
    assert schedule is not None
    write_graph(folder / "graph.json", graph)
    write_schedule(folder / "schedule.json", schedule, graph)
    every = [(package, way, name) for package in _PACKAGES for way in _WAYS for name in _COMMANDS]
    for k, (package, way, name) in enumerate(random.sample(every, min(count, len(every)))):
        place = folder / str(k)
        yield Fault(
            f"{name}, with a {package} that raises {way}",
            lambda a=(package, way, name, folder, place): _happen(*a),
        )


def _happen(package: str, way: str, name: str, folder: Path, place: Path) -> str | None:
    (place / package).mkdir(parents=True)
    (place / package / "__init__.py").write_text(_WAYS[way])
    places = {"GRAPH": folder / "graph.json", "SCHEDULE": folder / "schedule.json"}
    words = [places.get(word, word.replace("OUT", str(place / "out"))) for word in _COMMANDS[name]]
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    ended = command(*words, environment={"PYTHONPATH": path})
    right = {0}
    if name == "doctor":
        right = {0, 1}
    if package == "rich" or package in _NEEDS.get(name, ()):
        right = {0, 2}
    if ended.code not in right:
        return f"exit {ended.code}: {ended.stdout} {ended.stderr}"
    if "Traceback" in ended.stderr:
        return ended.stderr
    if ended.code == 2 and not {package, f"'{_MILP}'"} & {*ended.stderr.replace(":", "").split()}:
        return f"the message names neither {package} nor what needs it: {ended.stderr}"
    return f"still there: {ended.left}" if ended.left else None


CLASSES = (
    FaultClass(
        name="optional packages that fail at import",
        must="commands that don't need them work; others name them in one line, with exit code 2",
        count=90,
        make=_imports,
        apart=True,
    ),
)

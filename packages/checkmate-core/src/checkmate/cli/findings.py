"""Checks of an installation: each finding is ok, a note or a problem, with advice.

This module needs neither click nor rich. Versions come from the metadata of the installed distributions.
An import may raise, end its process or never return, and only trying shows it: libraries, and the solvers of
each plugin, are loaded in processes of their own.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from checkmate.errors import DISTRIBUTIONS, install_hint
from checkmate.plugins import (
    COST_MODELS,
    EXECUTORS,
    EXPORTERS,
    FRONTENDS,
    SOLVERS,
    LoadedPlugin,
    SolverSpec,
    command_errors,
    installed_plugins,
)
from checkmate.plugins.loader import ENVIRONMENT_VARIABLE as PLUGINS_VARIABLE
from checkmate.text.printable import excerpt

__all__ = ["Clash", "Finding", "clashes", "distribution_versions", "failure", "findings"]

_OTHERS = (
    *("numpy", "scipy", "ortools", "highspy", "torch", "tensorflow", "tensorflow-cpu", "keras"),
    *("click", "rich", "matplotlib", "hypothesis", "pytest"),  # needed by the extras of checkmate-core
)
_LIBRARIES = ("matplotlib.figure", "ortools.sat.python.cp_model", "scipy.optimize")
"""Modules of optional libraries that solvers and pictures need; frameworks would take too long to load."""
_TIME_LIMIT_S = 120.0
_LOADED, _FAILED, _OPTIONAL = "loaded", "failed: ", "not installed (optional): "
_ABSENT = ("ModuleNotFoundError", "MissingDistributionError")

_LOAD_SOLVERS = """
from checkmate.errors import MissingDistributionError
from checkmate.plugins import SOLVERS
for name in {names}:
    try:
        SOLVERS.load(name)
    except Exception as error:
        lacking = error.__cause__
        if isinstance(lacking, MissingDistributionError) and lacking.name:
            needs = ", ".join(SOLVERS.spec(name).requires)
            print("failed: not installed (optional):", lacking.name, "(" + needs + ")", flush=True)
        else:
            print("failed:", *str(error).split(), flush=True)
"""


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        level: ``"ok"``, ``"note"`` (worth knowing) or ``"problem"`` (a part can't work).
        subject: the thing that was checked.
        text: its state.
        advice: what to do; may be empty.
    """

    level: Literal["ok", "note", "problem"]
    subject: str
    text: str
    advice: str = ""


class Clash(NamedTuple):
    """A name that several plugins offer; it is disabled."""

    kind: str
    name: str
    owners: tuple[str, ...]


def clashes() -> list[Clash]:
    """All ambiguous names, of every kind."""
    return [
        Clash(registry.kind, name, owners)
        for registry in (SOLVERS, COST_MODELS, FRONTENDS, EXECUTORS, EXPORTERS)
        for name, owners in registry.ambiguous().items()
    ]


def failure(plugin: LoadedPlugin) -> str | None:
    """The error of a plugin, or of its commands if the command line has asked for them; None if it works."""
    if plugin.error is not None:
        return plugin.error
    refused = command_errors().get(plugin.owner)
    return f"its commands failed: {refused}" if refused is not None else None


def findings() -> list[Finding]:
    """The findings of all checks, in their order."""
    checks = (_versions, _conflicts, _solvers, _plugins, _loading)
    return [finding for check in checks for finding in check()]


def distribution_versions() -> dict[str, str | None]:
    """The version of each distribution of interest; None if it is not installed."""
    return {name: _version(name) for name in (*DISTRIBUTIONS, *_OTHERS)}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield Finding("ok", "python", f"{platform.python_version()} on {system}")
    installed = {name: version for name, version in distribution_versions().items() if version is not None}
    for name, version in installed.items():
        yield Finding("ok", name, version)
    ours = {name: version for name, version in installed.items() if name in DISTRIBUTIONS}
    if len(set(ours.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in ours.items())
        text = f"these were not released together: {listed}"
        yield Finding("note", "versions", text, install_hint(" ".join(ours)))


def _conflicts() -> Iterator[Finding]:
    """Distributions that share our import name or can't share a process; a missing TensorFlow."""
    owners = {*metadata.packages_distributions().get("checkmate", [])} - {"checkmate-core", "checkmate_core"}
    if owners:
        names = " ".join(sorted(owners))
        yield Finding(
            "problem",
            "import checkmate",
            f"{names} installs a package of the same import name: files of both may be mixed up",
            f"pip uninstall {names} checkmate-core, then {install_hint('checkmate-core')}",
        )
    else:
        yield Finding("ok", "import checkmate", "only checkmate-core has this import name")
    if _version("highspy") is not None and _version("ortools") is not None:
        yield Finding(
            "problem",
            "highspy, ortools",
            "both are installed, and a process that imports one fails to import the other",
            "pip uninstall highspy (SciPy brings a HiGHS of its own)",
        )
    if _version("checkmate-tf") is not None and find_spec("tensorflow") is None:
        yield Finding(  # checkmate-tf can't require it: it is distributed under several names
            "note",
            "framework",
            "checkmate-tf is installed without TensorFlow, which it needs at its first use",
            f"{install_hint('checkmate-tf[cpu]')}; for a GPU 'checkmate-tf[gpu]'",
        )


def _solvers() -> Iterator[Finding]:
    names = [spec.name for spec in SOLVERS.specs()]
    if "auto" in names:
        yield Finding("ok", "solvers", ", ".join(names))
    else:
        text = f"only {', '.join(names)}: no 'auto', no proved bounds"
        yield Finding("note", "solvers", text, install_hint("checkmate-solvers"))
    if len(installed_plugins()) == 1 and os.environ.get(PLUGINS_VARIABLE) is not None:
        yield Finding("note", "plugins", f"{PLUGINS_VARIABLE} excludes all but the built-in plugin")


def _plugins() -> Iterator[Finding]:
    """The plugins, with their errors, and names that several of them offer."""
    for plugin in installed_plugins():
        subject, error = f"plugin {plugin.name!r}", failure(plugin)
        if error is None:
            yield Finding("ok", subject, plugin.distribution)
        else:
            advice = "upgrade or uninstall it, or leave it out of CHECKMATE_PLUGINS"
            yield Finding("problem", subject, f"{plugin.distribution}: {error}", advice)
    for clash in clashes():
        text = f"offered by {' and by '.join(clash.owners)}: it is disabled"
        advice = "uninstall all but one, or list the plugins to load in CHECKMATE_PLUGINS"
        yield Finding("problem", f"{clash.kind} {clash.name!r}", text, advice)


def _loading() -> Iterator[Finding]:
    """Libraries, and the solvers of each plugin, that are installed but fail to load."""
    working = []
    for subject, program in _programs().items():
        errors = load_errors(program)
        working += [] if errors else [subject]
        for error in dict.fromkeys(errors):  # several solvers may lack one library
            if error.startswith(_OPTIONAL):
                yield Finding("note", subject, error)
                continue
            absent = any(name in error for name in _ABSENT)
            advice = "reinstall or upgrade the library in the message; other parts work without it"
            level: Literal["note", "problem"] = "note" if absent else "problem"
            yield Finding(level, subject, f"fails to load: {error}", "" if absent else advice)
    if working:
        yield Finding("ok", "loading", ", ".join(working))


def _programs() -> dict[str, str]:
    """Subject → the program that loads it, for each library and the solvers of each plugin."""
    found = (name for name in _LIBRARIES if find_spec(name.partition(".")[0]) is not None)
    programs = {f"import {name}": f"import {name}" for name in found}
    usable = {spec.name for spec in SOLVERS.specs()}
    for plugin in installed_plugins():
        names = [s.name for s in plugin.offers if isinstance(s, SolverSpec) and s.name in usable]
        if names and plugin.distribution != "checkmate-core":  # core itself is running
            programs[f"solvers of {plugin.name!r}"] = _LOAD_SOLVERS.format(names=names)
    return programs


def load_errors(program: str, time_limit: float = _TIME_LIMIT_S) -> list[str]:
    """Run a Python program in a process outside of the current folder; return its errors, one line each.

    Errors are lines ``failed: …`` that it prints, and the reason if it ends early. The limit is in seconds.
    """
    end = f"\nimport os\nos.write(1, b'\\n{_LOADED}')\nos._exit(0)"  # waits for no thread of foreign code
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    with TemporaryDirectory(prefix="checkmate-") as folder:  # empty, so that no library finds settings in it
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", program + end],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=time_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [f"it did not load within {time_limit:g} s"]
    out, err = (stream.decode(errors="replace").splitlines() for stream in (done.stdout, done.stderr))
    told = [line.removeprefix(_FAILED) for line in out if line.startswith(_FAILED)]
    if out[-1:] != [_LOADED]:
        told += err[-1:] or [f"it ended the process with exit code {done.returncode}"]
    return [excerpt(line) for line in told]

"""Checks of an installation: each finding is ok, a note or a problem, with advice.

Nothing heavy is imported here: versions come from the metadata of the installed distributions, and loading is
tried in other processes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from checkmate.errors import DISTRIBUTIONS, install_hint
from checkmate.files.cache import ScheduleCache
from checkmate.files.disk import ENVIRONMENT_VARIABLE as CACHE_VARIABLE
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
from checkmate.plugins.probe import attempts

__all__ = [
    "Clash",
    "Finding",
    "clashes",
    "distribution_versions",
    "environment_findings",
    "every_finding",
    "failure",
    "findings",
    "loading_findings",
]

Level = Literal["ok", "note", "problem"]

_OTHERS = ("numpy", "scipy", "numba", "ortools", "highspy", "torch", "tensorflow", "tensorflow-cpu", "keras")
_EXTRAS = {
    "cli": (("click", "rich"), "the command line"),
    "plot": (("matplotlib",), "pictures"),
    "testing": (("hypothesis", "pytest"), "the conformance kit"),
}
_LIBRARIES = ("matplotlib.figure", "numba", "ortools.sat.python.cp_model", "scipy.optimize")
"""Modules of optional libraries that solvers and pictures need; frameworks would take too long to load."""

_VARIABLES = {PLUGINS_VARIABLE, CACHE_VARIABLE, "CHECKMATE_LOG", "CHECKMATE_PROGRESS"}
_PREFIX = "CHECKMATE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        level: ``"ok"``, ``"note"`` (worth knowing) or ``"problem"`` (a part can't work).
        subject: the thing that was checked.
        text: its state.
        advice: what to do; may be empty.
    """

    level: Level
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
    """The error of a plugin, or of its commands, which must be loaded; None if all of it works."""
    if plugin.error is not None:
        return plugin.error
    refused = command_errors().get(plugin.owner)
    return f"its commands failed: {refused}" if refused is not None else None


def every_finding() -> list[Finding]:
    """The findings of all checks, the slow ones included."""
    return [*findings(), *_plugins(), *loading_findings()]


def findings(checks: tuple[Callable[[], Iterator[Finding]], ...] | None = None) -> list[Finding]:
    """The findings of all quick checks, in their order."""
    return [
        finding
        for check in checks
        or (_versions, _extras, _import_name, _highs, _tensorflow, _solvers, _cache, environment_findings)
        for finding in check()
    ]


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
    yield Finding(level="ok", subject="python", text=f"{platform.python_version()} on {system}")
    installed = {name: version for name, version in distribution_versions().items() if version is not None}
    for name, version in installed.items():
        yield Finding(level="ok", subject=name, text=version)
    ours = {name: version for name, version in installed.items() if name in DISTRIBUTIONS}
    if len(set(ours.values())) > 1:
        yield Finding(
            level="note",
            subject="versions",
            text=f"these were not released together: {_listed(ours)}",
            advice=install_hint(" ".join(ours)),
        )


def _extras() -> Iterator[Finding]:
    for extra, (needs, purpose) in _EXTRAS.items():
        missing = [name for name in needs if _version(name) is None]
        if missing:
            yield Finding(
                level="note",
                subject=f"extra {extra!r}",
                text=f"{purpose}: {' and '.join(missing)} not installed",
                advice=install_hint(f"checkmate-core[{extra}]"),
            )
        else:
            versions = {name: _version(name) for name in needs}
            yield Finding(level="ok", subject=f"extra {extra!r}", text=f"{purpose}: {_listed(versions)}")


def _listed(versions: dict[str, str] | dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _import_name() -> Iterator[Finding]:
    """Find other distributions with a package ``checkmate``, which are installed into the same folder."""
    owners = {*metadata.packages_distributions().get("checkmate", [])} - {"checkmate-core", "checkmate_core"}
    if owners:
        names = " ".join(sorted(owners))
        yield Finding(
            level="problem",
            subject="import checkmate",
            text=f"{names} installs a package of the same import name: files of both may be mixed up",
            advice=f"pip uninstall {names} checkmate-core, then {install_hint('checkmate-core')}",
        )
    else:
        yield Finding(level="ok", subject="import checkmate", text="only checkmate-core has this import name")


def _highs() -> Iterator[Finding]:
    if _version("highspy") is not None and _version("ortools") is not None:
        yield Finding(
            level="problem",
            subject="highspy, ortools",
            text="both are installed, and a process that imports one fails to import the other",
            advice="pip uninstall highspy (SciPy brings a HiGHS of its own)",
        )


def _tensorflow() -> Iterator[Finding]:
    """Find a missing TensorFlow: it has several names, so ``checkmate-tf`` does not require it."""
    if _version("checkmate-tf") is not None and find_spec("tensorflow") is None:
        yield Finding(
            level="note",
            subject="framework",
            text="checkmate-tf is installed without TensorFlow, which it needs at its first use",
            advice=f"{install_hint('checkmate-tf[cpu]')}; for a GPU 'checkmate-tf[gpu]'",
        )


def _solvers() -> Iterator[Finding]:
    names = [spec.name for spec in SOLVERS.specs()]
    if "auto" in names:
        yield Finding(level="ok", subject="solvers", text=", ".join(names))
    else:
        yield Finding(
            level="note",
            subject="solvers",
            text=f"only {', '.join(names)}: no 'auto', no proved bounds",
            advice=install_hint("checkmate-solvers"),
        )
    if len(installed_plugins()) == 1 and os.environ.get(PLUGINS_VARIABLE) is not None:
        yield Finding(
            level="note", subject="plugins", text=f"{PLUGINS_VARIABLE} excludes all but the built-in plugin"
        )


def _plugins() -> Iterator[Finding]:
    """The plugins, with their errors, and names that several of them offer."""
    for plugin in installed_plugins():
        error = failure(plugin)
        if error is None:
            yield Finding(level="ok", subject=f"plugin {plugin.name!r}", text=plugin.distribution)
            continue
        yield Finding(
            level="problem",
            subject=f"plugin {plugin.name!r}",
            text=f"{plugin.distribution}: {error}",
            advice="upgrade or uninstall it, or leave it out of CHECKMATE_PLUGINS",
        )
    for clash in clashes():
        yield Finding(
            level="problem",
            subject=f"{clash.kind} {clash.name!r}",
            text=f"offered by {' and by '.join(clash.owners)}: it is disabled",
            advice="uninstall all but one, or list the plugins to load in CHECKMATE_PLUGINS",
        )


def loading_findings() -> Iterator[Finding]:
    """Libraries, and the solvers of each plugin, that are installed but fail to load."""
    tried = [attempt for group in _to_load() for attempt in attempts(group)]
    for attempt in tried:
        if attempt.error:
            yield Finding(
                level="note" if attempt.absent else "problem",
                subject=attempt.thing,
                text=f"fails to load: {attempt.error}",
                advice=""
                if attempt.absent
                else "reinstall or upgrade the library in the message; other parts work without it",
            )
    loaded = [attempt.thing for attempt in tried if not attempt.error]
    if loaded:
        yield Finding(level="ok", subject="loading", text=", ".join(loaded))


def _to_load() -> Iterator[list[str]]:
    """What to load, grouped: one process loads one group."""
    yield [f"import {name}" for name in _LIBRARIES if find_spec(name.partition(".")[0]) is not None]
    usable = {spec.name for spec in SOLVERS.specs()}
    for plugin in installed_plugins():
        if plugin.distribution != "checkmate-core":  # which is running
            yield [
                f"solver {s.name}" for s in plugin.offers if isinstance(s, SolverSpec) and s.name in usable
            ]


def _cache() -> Iterator[Finding]:
    cache = ScheduleCache()
    folder = next(p for p in (cache.directory, *cache.directory.parents) if p.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            level="problem",
            subject="cache",
            text=f"{cache.directory} can't be written: {_not_writable(folder)}",
            advice=f"change its permissions, or set {CACHE_VARIABLE} to another folder",
        )
        return
    entries = len(cache)
    text = f"{entries} kept" if folder == cache.directory else "not there yet"
    yield Finding(level="ok", subject="cache", text=f"{cache.directory}: {text}")


def _not_writable(folder: Path) -> str:
    return f"{folder} {'is read-only' if folder.is_dir() else 'is no folder'}"


def environment_findings() -> Iterator[Finding]:
    """The environment variables ``CHECKMATE_*``; an unknown one may be misspelt."""
    for name in sorted(name for name in os.environ if name.startswith(_PREFIX)):
        if name in _VARIABLES:
            yield Finding(level="ok", subject=name, text=repr(os.environ[name]))
        else:
            known = ", ".join(sorted(_VARIABLES))
            yield Finding(
                level="note",
                subject=name,
                text=f"{os.environ[name]!r}: not read by checkmate-core",
                advice=f"it reads {known}",
            )

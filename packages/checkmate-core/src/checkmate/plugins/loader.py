"""The isolating plugin loader: a broken plugin is reported and stops no other.

Each entry point of the group ``checkmate`` is loaded and registered; every hook that it defines must exist;
then it is asked for its offers. If any of these fails, only that plugin is dropped, and listed with its
error. Built-ins come first. Loading happens once, at the first lookup; the environment variable
``CHECKMATE_PLUGINS`` restricts it to a comma-separated list of entry-point names (empty: built-ins only).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module, metadata
from typing import Any, NamedTuple

import pluggy

from checkmate.errors import PluginError
from checkmate.plugins import hookspecs
from checkmate.plugins.hookspecs import PROJECT
from checkmate.plugins.specs import CostModelSpec, ExecutorSpec, ExporterSpec, FrontendSpec, SolverSpec
from checkmate.text.printable import clipped, excerpt

__all__ = [
    "ANYTHING",
    "ENVIRONMENT_VARIABLE",
    "LoadedPlugin",
    "Spec",
    "command_errors",
    "installed_plugins",
    "one_line",
    "register_commands",
    "reset",
]

ENVIRONMENT_VARIABLE = "CHECKMATE_PLUGINS"

Spec = SolverSpec | CostModelSpec | FrontendSpec | ExecutorSpec | ExporterSpec

_BUILT_IN = "checkmate.builtin"  # by name: it imports modules above this one
_KINDS: dict[str, type[Spec]] = {
    "solvers": SolverSpec,
    "cost_models": CostModelSpec,
    "frontends": FrontendSpec,
    "executors": ExecutorSpec,
    "exporters": ExporterSpec,
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugin:
    """One plugin, working or broken.

    Attributes:
        name: the name of its entry point.
        distribution: the plugin's distribution and version, e.g. ``"checkmate-solvers 0.1.0"``.
        offers: every spec that it registered; empty if it failed.
        error: why it failed, on one line; None if it works.
    """

    name: str
    distribution: str
    offers: tuple[Spec, ...] = ()
    error: str | None = None

    @property
    def owner(self) -> str:
        """Its name in messages, as in ``'solvers' (checkmate-solvers 0.1.0)``."""
        return f"{self.name!r} ({self.distribution})"


def installed_plugins() -> tuple[LoadedPlugin, ...]:
    """Every plugin, built-ins first, then in order of distribution and name; broken ones included."""
    return _load().plugins


def register_commands(cli: Any, *, announce: Callable[[str], None] | None = None) -> dict[str, str]:
    """Let every plugin add its commands to ``cli``, a ``click.Group``; announce each before its turn.

    Returns:
        The error, on one line, of each plugin whose commands failed, by its ``owner``.
    """
    manager, loaded, errors = _load()
    errors.clear()
    for number, plugin in enumerate(loaded):
        if plugin.error is None:
            if announce is not None:
                announce(plugin.owner)
            try:
                _call(manager, manager.get_plugin(str(number)), "checkmate_register_commands", cli=cli)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - foreign code
                errors[plugin.owner] = one_line(error)
    return dict(errors)


def command_errors() -> dict[str, str]:
    """The last result of :func:`register_commands`: plugins that work, but whose commands failed.

    Empty before that call, which only the command line makes.
    """
    return dict(_load().command_errors)


def reset() -> None:
    """Unload all plugins; the next lookup loads them again. For tests, and after installing a plugin."""
    _load.cache_clear()


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    distribution: str
    load: Callable[[], object]


ANYTHING: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""The exceptions of foreign code that are caught while it runs; while a plugin loads, all except Ctrl-C."""


class _Loaded(NamedTuple):
    manager: pluggy.PluginManager
    plugins: tuple[LoadedPlugin, ...]
    command_errors: dict[str, str]  # by owner; filled by register_commands


@cache
def _load() -> _Loaded:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    loaded = tuple(_isolated(manager, candidate, str(i)) for i, candidate in enumerate(_candidates()))
    for plugin in loaded:
        if plugin.error is not None:
            _log.info("plugin %s failed to load: %s", plugin.owner, plugin.error)
    return _Loaded(manager, loaded, {})


def _candidates() -> Iterator[_Candidate]:
    """The built-ins, then the wanted entry points; one that is wanted but not installed fails when loaded."""
    yield _Candidate("built-in", "checkmate-core", lambda: import_module(_BUILT_IN))
    try:
        found = [_candidate(entry_point) for entry_point in metadata.entry_points(group=PROJECT)]
    except Exception as error:  # noqa: BLE001 - malformed metadata of any distribution
        found = []
        yield _Candidate("entry points", "malformed metadata", partial(_fail, error))
    found.sort(key=lambda c: (c.distribution, c.name))
    setting = os.environ.get(ENVIRONMENT_VARIABLE)
    if setting is None:
        yield from found
        return
    wanted = dict.fromkeys(name for part in setting.split(",") if (name := part.strip()))
    yield from (c for c in found if c.name in wanted)
    missing = PluginError("no installed distribution has a plugin of this name")
    for name in wanted:
        if name not in {c.name for c in found}:
            yield _Candidate(name, f"named in {ENVIRONMENT_VARIABLE}", partial(_fail, missing))


def _candidate(entry_point: metadata.EntryPoint) -> _Candidate:
    dist = entry_point.dist
    return _Candidate(entry_point.name, f"{dist.name} {dist.version}" if dist else "?", entry_point.load)


def _fail(error: Exception) -> object:
    raise error


def _isolated(manager: pluggy.PluginManager, candidate: _Candidate, key: str) -> LoadedPlugin:
    """Load one plugin, under a key of its own; if it fails, it is removed from the manager."""
    plugin = LoadedPlugin(name=clipped(candidate.name), distribution=clipped(candidate.distribution))
    try:
        manager.register(candidate.load(), name=key)
        manager.check_pending()
        offers = tuple(_offers(manager, manager.get_plugin(key)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - e.g. a skipped test, or a panic in another language
        if manager.get_plugin(key) is not None:
            manager.unregister(name=key)
        return replace(plugin, error=one_line(error))
    return replace(plugin, offers=offers)


def _offers(manager: pluggy.PluginManager, plugin: object) -> Iterator[Spec]:
    """All specs that one plugin registers, each checked to be of the kind of its hook."""
    for kind, expected in _KINDS.items():
        hook, names = f"checkmate_register_{kind}", set[str]()
        for specs in _call(manager, plugin, hook):
            if not isinstance(specs, Iterable):
                raise PluginError(f"{hook} returned {specs!r}, not an iterable of {expected.__name__}")
            for spec in specs:
                if slip := _slip(spec, expected, names):
                    raise PluginError(f"{hook} returned {slip}")
                names.add(spec.name)
                yield spec


def _slip(spec: object, expected: type[Spec], names: Set[str]) -> str | None:
    """Why a hook's offer is refused (``names`` are its earlier offers); None if it is accepted."""
    if not isinstance(spec, expected):
        return f"{spec!r}, which is not of the class {expected.__name__}"
    texts: tuple[object, ...] = (spec.name, spec.summary)
    if not all(isinstance(text, str) and text.strip() and text.isprintable() for text in texts):
        return f"{spec!r}, whose name or summary is not one line of text"
    requires: object = spec.requires
    if not isinstance(requires, tuple):
        return f"{spec!r}, whose requires is not a tuple: is a comma missing?"
    suffix: object = getattr(spec, "suffix", ".")
    if not isinstance(suffix, str) or not suffix.startswith("."):
        return f"{spec!r}, whose suffix does not start with a dot"
    return f"two specs of the name {spec.name!r}" if spec.name in names else None


def _call(manager: pluggy.PluginManager, plugin: object, hook: str, **arguments: object) -> list[Any]:
    """Call a hook of one plugin only."""
    others = [other for other in manager.get_plugins() if other is not plugin]
    results: list[Any] = manager.subset_hook_caller(hook, others)(**arguments)
    return results


def one_line(error: BaseException) -> str:
    """The error as one line that is safe to print, whatever its ``str`` does."""
    try:
        text = excerpt(" ".join(str(error).split()))
    except ANYTHING:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

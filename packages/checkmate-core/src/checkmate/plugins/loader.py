"""The isolating plugin loader: one broken plugin never stops another, and is never forgotten.

For each entry point of the group ``checkmate``: load it, register it, check that every hook it defines
exists, ask it for what it offers. If any of these fails, that one plugin is dropped and kept with its error.
Built-ins come first. Loading happens once, at the first lookup; the environment variable
``CHECKMATE_PLUGINS`` restricts it to a comma-separated list of entry-point names (empty: built-ins only).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module, metadata
from typing import Any, NamedTuple

import pluggy

from checkmate.errors import PluginError
from checkmate.plugins import hookspecs
from checkmate.plugins.hookspecs import PROJECT
from checkmate.plugins.specs import CostModelSpec, ExecutorSpec, ExporterSpec, FrontendSpec, SolverSpec
from checkmate.text import clipped, excerpt

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

_BUILT_IN = "checkmate.builtin"  # by name: what it registers stands above plugins
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
    """One plugin and what became of it.

    Attributes:
        name: of its entry point.
        distribution: that it came with, e.g. ``"checkmate-solvers 0.1.0"``.
        offers: every spec that it registered; empty if it failed.
        error: why it failed, on one line; None if it works.
    """

    name: str
    distribution: str
    offers: tuple[Spec, ...] = ()
    error: str | None = None

    @property
    def owner(self) -> str:
        """How messages name it, as in ``'solvers' (checkmate-solvers 0.1.0)``."""
        return f"{self.name!r} ({self.distribution})"


def installed_plugins() -> tuple[LoadedPlugin, ...]:
    """Every plugin, built-ins first, then in order of distribution and name; broken ones included."""
    return _load().plugins


def register_commands(cli: Any, *, announce: Callable[[str], None] | None = None) -> dict[str, str]:
    """Let every plugin add its commands to ``cli``, a ``click.Group``.

    Args:
        cli: the group.
        announce: called with the ``owner`` of each plugin before its turn.

    Returns:
        the error, on one line, of each plugin that failed to, by its ``owner``.
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
    """What :func:`register_commands` returned last: plugins that work, save that their commands don't.

    Empty before it is called: plugins are asked for commands only by a command line.
    """
    return dict(_load().command_errors)


def reset() -> None:
    """Forget what is loaded; the next lookup loads again. For tests, and after installing a plugin."""
    _load.cache_clear()


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    distribution: str
    load: Callable[[], object]


ANYTHING: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""What foreign code may raise while it runs; a plugin that loads may raise still more, save Ctrl-C."""


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
    """Built-ins, then the wanted entry points; one that is wanted and not installed fails when loaded."""
    yield _Candidate("built-in", "checkmate-core", lambda: import_module(_BUILT_IN))
    try:
        found = [_candidate(entry_point) for entry_point in metadata.entry_points(group=PROJECT)]
    except Exception as error:  # noqa: BLE001 - of some distribution, perhaps of nobody's plugin
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
    """Load one plugin, under a key of its own; if it fails, the manager is left as if it did not exist."""
    plugin = LoadedPlugin(name=clipped(candidate.name), distribution=clipped(candidate.distribution))
    try:
        manager.register(candidate.load(), name=key)
        manager.check_pending()
        offers = tuple(_offers(manager, manager.get_plugin(key)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a skipped test, a panic of another language
        if manager.get_plugin(key) is not None:
            manager.unregister(name=key)
        return replace(plugin, error=one_line(error))
    return replace(plugin, offers=offers)


def _offers(manager: pluggy.PluginManager, plugin: object) -> Iterator[Spec]:
    """All specs that one plugin registers, each checked to be of the kind that its hook is for."""
    for kind, expected in _KINDS.items():
        hook, names = f"checkmate_register_{kind}", set[str]()
        for specs in _call(manager, plugin, hook):
            if not isinstance(specs, Iterable):
                raise PluginError(f"{hook} returned {specs!r}, not an iterable of {expected.__name__}")
            for spec in specs:
                if not isinstance(spec, expected):
                    raise PluginError(f"{hook} returned {spec!r}, which is no {expected.__name__}")
                texts: tuple[object, ...] = (spec.name, spec.summary)
                if not all(isinstance(text, str) and text.strip() and text.isprintable() for text in texts):
                    raise PluginError(f"{hook} returned {spec!r}, whose name or summary is no line of text")
                if not isinstance(spec.requires, tuple):
                    raise PluginError(f"{hook} returned {spec!r}, whose requires is no tuple: a comma lacks?")
                if spec.name in names:
                    raise PluginError(f"{hook} returned two of the name {spec.name!r}")
                names.add(spec.name)
                suffix: object = getattr(spec, "suffix", ".")
                if not isinstance(suffix, str) or not suffix.startswith("."):
                    raise PluginError(f"{hook} returned {spec!r}, whose suffix does not start with a dot")
                yield spec


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

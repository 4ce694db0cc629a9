"""Lookup by name, the same for every kind of spec: name ↦ (plugin, spec), built-ins first.

A name that several plugins offer is ambiguous: using it raises an error that names the owners. An unknown
name raises an error that lists the installed names, those that lack a package, and the plugins that failed to
load.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar, cast

from checkmate.errors import PluginError, install_hint
from checkmate.plugins.loader import LoadedPlugin, Spec, installed_plugins, one_line
from checkmate.text.printable import excerpt, quoted

__all__ = ["Registry", "failed_plugins", "is_missing"]

_Spec = TypeVar("_Spec", bound=Spec)
_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry(Generic[_Spec, _Thing]):
    """The installed plugins of one kind, by name.

    Attributes:
        kind: its name in messages, e.g. ``"solver"``.
        spec_type: the class of its specs.
        method: the method that a loaded object must have, e.g. ``"solve"``.
    """

    kind: str
    spec_type: type[_Spec]
    method: str

    def specs(self) -> tuple[_Spec, ...]:
        """The specs of all usable names, built-ins first; ambiguous names are left out."""
        return tuple(owners[0][1] for owners in self._owners().values() if len(owners) == 1)

    def ambiguous(self) -> dict[str, tuple[str, ...]]:
        """Names that several plugins offer, with their owners."""
        return {
            name: tuple(plugin.owner for plugin, _ in owners)
            for name, owners in self._owners().items()
            if len(owners) > 1
        }

    def spec(self, name: str) -> _Spec:
        """The spec of this name.

        Raises:
            PluginError: if no plugin, or more than one, offers it.
        """
        return self._owned(name)[1]

    def owner(self, name: str) -> LoadedPlugin:
        """The plugin that offers this name.

        Raises:
            PluginError: as :meth:`spec`.
        """
        return self._owned(name)[0]

    def load(self, name: str) -> _Thing:
        """Look the spec up, and call its ``load``.

        Raises:
            PluginError: as :meth:`spec`; or if ``load`` fails, or returns an object without ``method``.
        """
        plugin, spec = self._owned(name)
        label = f"{self.kind} {name!r} of {plugin.owner}"
        try:
            thing: Any = spec.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            needs = f"; it needs: {excerpt(install_hint(' '.join(spec.requires)))}" if spec.requires else ""
            raise PluginError(f"{label} failed to load: {one_line(error)}{needs}") from error
        if not callable(getattr(thing, self.method, None)):
            raise PluginError(f"{label} loads a {type(thing).__name__}: it has no {self.method}()")
        return cast("_Thing", thing)

    def _owned(self, name: str) -> tuple[LoadedPlugin, _Spec]:
        owners = self._owners().get(name, [])
        if len(owners) > 1:
            names = " and by ".join(plugin.owner for plugin, _ in owners)
            raise PluginError(
                f"{self.kind} {name!r} is offered by {names}: "
                "uninstall all but one, or list the plugins to load in CHECKMATE_PLUGINS"
            )
        if not owners:
            raise PluginError(self._unknown(name))
        return owners[0]

    def _owners(self) -> Mapping[str, list[tuple[LoadedPlugin, _Spec]]]:
        owners: dict[str, list[tuple[LoadedPlugin, _Spec]]] = {}
        for plugin in installed_plugins():
            for spec in plugin.offers:
                if isinstance(spec, self.spec_type):
                    owners.setdefault(spec.name, []).append((plugin, spec))
        return owners

    def _unknown(self, name: str) -> str:
        lacking = {spec.name: spec.requires for spec in self.specs() if any(map(is_missing, spec.requires))}
        installed = [spec.name for spec in self.specs() if spec.name not in lacking]
        message = f"no {self.kind} {quoted(name)}; installed: {installed}"
        if lacking:
            needed = " ".join(sorted({need for requires in lacking.values() for need in requires}))
            message += f"; lacking a package: {[*lacking]}: {excerpt(install_hint(needed))}"
        if self.kind == "solver" and is_missing("checkmate-solvers"):
            message += f"; checkmate-solvers has more: {install_hint('checkmate-solvers')}"
        if failed := failed_plugins():
            message += f"; failed to load: {failed} ('checkmate plugins' says why)"
        if close := difflib.get_close_matches(name, [*installed, *lacking]):
            message += f"; did you mean {' or '.join(map(repr, close))}?"
        return message


def is_missing(requirement: str) -> bool:
    """Whether a distribution, or one that an extra of it needs, is not installed; versions are not compared.

    >>> is_missing("checkmate-core"), is_missing("checkmate-core>=99"), is_missing("no-such-thing")
    (False, False, True)
    """
    found = re.match(r"\s*([\w.-]+)(?:\[([^\]]*)\])?", requirement)
    name, extras = found.groups("") if found is not None else (requirement, "")
    try:
        needs = metadata.requires(name) or []
    except (metadata.PackageNotFoundError, ValueError):
        return True
    marks = [re.compile(rf"extra *== *['\"]{re.escape(extra.strip())}['\"]") for extra in extras.split(",")]
    return any(is_missing(need) for need in needs if any(mark.search(need) for mark in marks))


def failed_plugins() -> list[str]:
    """Names of the plugins that failed to load."""
    return [plugin.name for plugin in installed_plugins() if plugin.error is not None]

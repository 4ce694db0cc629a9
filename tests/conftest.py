"""A law for the reference of a framework package: each public name, parameter and setting is documented."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import is_typeddict

import pytest

_PASSED_ON = ("self", "args", "kwargs")


@pytest.fixture(scope="session")
def undocumented() -> Callable[[ModuleType, Path], list[str]]:
    """(package, page of its reference) ↦ names, parameters, attributes and settings without documentation."""

    def missing(package: ModuleType, page: Path) -> list[str]:
        words = set(re.findall(r"\w+", page.read_text(encoding="utf-8")))
        public = {name: getattr(package, name) for name in package.__all__}
        gaps = [f"{page.name}: {name}" for name in public if name not in words]
        return gaps + [gap for name, thing in public.items() for gap in _gaps(name, thing)]

    return missing


def _gaps(name: str, thing: object) -> Iterator[str]:
    """What the docstrings of a name and of its members leave out."""
    if not inspect.getdoc(thing):
        yield f"{name}: no docstring"
    if isinstance(thing, type):
        yield from _gaps_of_class(name, thing)
    elif inspect.isroutine(thing) and not isinstance(thing, cached_property):
        for parameter in inspect.signature(thing).parameters.values():
            if parameter.name not in _PASSED_ON and not _names([thing], "Args", parameter.name):
                yield f"{name}: {parameter.name}"
            if settings := re.match(r"Unpack\[(\w+)\]", str(parameter.annotation)):
                yield from _gaps_of_settings(getattr(sys.modules[thing.__module__], settings[1]))


def _gaps_of_class(name: str, cls: type) -> Iterator[str]:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("checkmate")]
    for field in fields(cls) if is_dataclass(cls) else ():
        if field.name[0] != "_" and not _names(ours, "Attributes", field.name):
            yield f"{name}: {field.name}"
    members = {key: member for base in reversed(ours) for key, member in vars(base).items()}
    for key, member in members.items():
        if key[0] != "_" and (inspect.isroutine(member) or isinstance(member, property)):
            yield from _gaps(f"{name}.{key}", getattr(member, "__func__", member))


def _gaps_of_settings(settings: type) -> Iterator[str]:
    """Keys that no docstring names.

    A TypedDict forgets which ones it extends: all count that its module knows, and those of their modules.
    """
    near = filter(is_typeddict, vars(sys.modules[settings.__module__]).values())
    kinds = [far for kind in near for far in vars(sys.modules[kind.__module__]).values() if is_typeddict(far)]
    for key in settings.__annotations__:
        if not _names(kinds, "Attributes", key):
            yield f"{settings.__name__}: {key}"


def _names(documented: Iterable[object], section: str, name: str) -> bool:
    """Whether a section of a docstring has an entry of this name."""
    bodies = (re.split(rf"^{section}:$", inspect.getdoc(each) or "", flags=re.M)[1:] for each in documented)
    return any(re.search(rf"^ +\*{{0,2}}{name}:", body, re.M) for body, *_ in filter(None, bodies))


@pytest.fixture(scope="session")
def failing() -> Callable[..., dict[str, str]]:
    """Names of the checks that fail, without ``test_``, and their messages; skipped ones pass."""

    def failing(case: object, only: str = "", but: str = "") -> dict[str, str]:
        messages = {}
        for name in (name for name in dir(case) if name.startswith("test_")):
            if name == f"test_{but}" or (only and name != f"test_{only}"):
                continue
            try:
                getattr(case, name)()
            except pytest.fail.Exception as failure:
                messages[name.removeprefix("test_")] = str(failure)
            except pytest.skip.Exception:
                pass
        return messages

    return failing

"""No module of the packages imports itself through others, imports inside functions included.

import-linter checks the floors of the packages. A circle can hide from it inside functions; still, neither of
its modules can be understood, tested or moved without the others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[2] / "packages").glob("*/src"))


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found = {}
    for source in SOURCES:
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a module at any depth, except those for type checkers only."""
    skipped: list[ast.stmt] = []
    for node in ast.walk(tree):  # parents come before what they contain
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test).removeprefix("not "):
            runs = node.body if isinstance(node.test, ast.UnaryOp) else node.orelse
            skipped += [inner for part in (node.body, node.orelse) if part is not runs for inner in part]
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in skipped:
            yield node


def defines(path: Path, name: str) -> bool:
    """Whether a package binds ``name`` itself, as ``checkmate`` binds the function ``lower``."""
    return any(
        name in [alias.asname or alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom)
        else name == getattr(node, "name", None)
        for node in parsed(path).body
    )


def imported(name: str, known: Mapping[str, Path]) -> Iterator[str]:
    """The known modules that a module imports; for ``from a import b`` the module ``a.b`` if there is one."""
    package = name if known[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(parsed(known[name])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
            continue
        parts = package.split(".")
        above = parts[: len(parts) + 1 - node.level] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            module = f"{base}.{alias.name}"
            if module in known and not (base in known and defines(known[base], alias.name)):
                yield module
            elif base in known:
                yield base


def circles(known: Mapping[str, Path]) -> Iterator[str]:
    """Circles of imports, until breaking each at one place leaves none."""
    graph = {name: {other for other in imported(name, known) if other != name} for name in known}
    while True:
        try:
            return TopologicalSorter(graph).prepare()
        except CycleError as error:
            first, second, *_ = circle = error.args[1]
            yield " imported by ".join(circle)
            graph[second].discard(first)


def test_there_is_no_circle_of_imports() -> None:
    assert list(circles(modules())) == []


def test_a_circle_inside_functions_is_found(tmp_path: Path) -> None:
    sources = {
        "a": "def f():\n    from b import g\n",
        "b": "def g():\n    import c\n",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\nelse:\n    import a\n",
    }
    known = {name: tmp_path / f"{name}.py" for name in sources}
    for name, text in sources.items():
        known[name].write_text(text)
    assert [list(imported(name, known)) for name in known] == [["b"], ["c"], ["a"]]
    assert len(list(circles(known))) == 1

"""No module of the packages imports itself through others, imports inside functions included; rooms are few.

import-linter checks the floors of the packages. A circle can hide from it inside functions; still, neither of
its modules can be understood, tested or moved without the others. Run as a script, this file
prints rooms (folders, and modules beside them), arrows (imports between rooms) and floors of each package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "packages").glob("*/src"))
MOST = {  # rooms, arrows, floors
    "checkmate": (21, 92, 13),
    "checkmate_solvers": (14, 25, 5),
    "checkmate_tf": (14, 45, 10),
    "checkmate_torch": (19, 80, 11),
}


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


def arrows(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Each module, and the modules that it imports."""
    return {name: {other for other in imported(name, known) if other != name} for name in known}


def rooms(package: str, modules: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Each folder of a package and each module beside them, and those of them that it imports."""
    found: dict[str, set[str]] = {}
    for name, others in modules.items():
        for other in [name, *others]:
            first, second = (f"{each}..".split(".")[:2] for each in (name, other))
            if first[0] == second[0] == package and first[1] and second[1]:
                found.setdefault(first[1], set()).update({second[1]} - {first[1]})
    return found


def circles(graph: dict[str, set[str]]) -> Iterator[str]:
    """Circles of imports, until breaking each at one place, in the graph, leaves none."""
    while True:
        try:
            return TopologicalSorter(graph).prepare()
        except CycleError as error:
            first, second, *_ = circle = error.args[1]
            yield " imported by ".join(circle)
            graph[second].discard(first)


def floors(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Floors from the ground: what a room imports lies on lower floors."""
    order = TopologicalSorter(graph)
    order.prepare()
    found = []
    while order.is_active():
        found.append(sorted(order.get_ready()))
        order.done(*found[-1])
    return found


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return arrows(modules())


def test_there_is_no_circle_of_imports(imports: dict[str, set[str]]) -> None:
    assert list(circles({name: {*others} for name, others in imports.items()})) == []


@pytest.mark.parametrize("package", MOST)
def test_the_rooms_of_a_package_are_few_and_have_no_circle(
    imports: dict[str, set[str]], package: str
) -> None:
    graph = rooms(package, imports)
    assert list(circles(graph)) == []
    counts = len(graph), sum(map(len, graph.values())), len(floors(graph))
    assert all(n <= most for n, most in zip(counts, MOST[package], strict=True)), counts


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
    assert len(list(circles(arrows(known)))) == 1


def test_rooms_are_folders_and_the_modules_beside_them() -> None:
    imports = {"p": ["p.a.b"], "p.a.b": ["p.c", "p.a"], "p.a": [], "p.c": ["q.d"], "p.d": ["p.a.b"]}
    graph = rooms("p", imports)
    assert graph == {"a": {"c"}, "c": set(), "d": {"a"}}
    assert floors(graph) == [["c"], ["a"], ["d"]]


if __name__ == "__main__":
    every = arrows(modules())
    for package in MOST:
        graph = rooms(package, every)
        for circle in circles(graph):
            print("circle:", circle)
        stacked = floors(graph)
        print(f"{package}: {len(graph)} rooms, {sum(map(len, graph.values()))} arrows, {len(stacked)} floors")
        for level, floor in reversed([*enumerate(stacked)]):
            print(f"  {level:2} {' '.join(floor)}")

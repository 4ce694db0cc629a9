"""A graph file, and the command line as a function; only built-in plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from checkmate import DFGraph, solve, write_graph, write_schedule
from checkmate.cli.app import app
from checkmate.plugins import FrontendSpec, hookimpl, loader, reset

Checkmate = Callable[..., Result]


@pytest.fixture(autouse=True)
def only_built_in_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep other installed packages out of these tests."""
    monkeypatch.setenv(loader.ENVIRONMENT_VARIABLE, "")
    for name in ("CHECKMATE_CACHE_DIR", "CHECKMATE_GRAPHS", "CHECKMATE_INSTALLED", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(app, "_asked", False)
    monkeypatch.setattr(app, "_owners", {})
    monkeypatch.setattr(app, "commands", dict(app.commands))
    reset()
    yield
    reset()


@dataclass(frozen=True)
class Layers:
    """A traced program of the frontend below."""

    graph: DFGraph


class LayersFrontend:
    """A frontend whose programs are numbers of layers."""

    def trace(self, program: Callable[[], int], /, cost_model: str = "unit") -> Layers:
        n = program()
        deps = [[], *([k] for k in range(n - 1))]
        graph = DFGraph.from_nodes(cost=[1] * n, size=[8] * n, deps=deps, name="layers")
        return Layers(replace(graph, cost_unit=cost_model))


class LayersPlugin:
    @staticmethod
    @hookimpl
    def checkmate_register_frontends() -> list[FrontendSpec]:
        return [FrontendSpec(name="torch", summary="counts layers", load=LayersFrontend)]


@pytest.fixture
def traces_torch(plug: Callable[..., None]) -> None:
    """Install a frontend ``torch``, whose programs return their number of layers."""
    plug(("layers", lambda: LayersPlugin))


@pytest.fixture
def chain() -> DFGraph:
    """A step of eight ops of cost 1 that make 8 bytes each: 40 bytes to keep everything, at least 24."""
    return DFGraph.from_nodes(
        cost=[1] * 8,
        size=[8] * 8,
        deps=[[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]],
        backward=[False] * 4 + [True] * 4,
        name="chain",
        cost_unit="s",
    )


@pytest.fixture
def graph(chain: DFGraph, tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    write_graph(path, chain)
    return path


@pytest.fixture
def schedule(chain: DFGraph, tmp_path: Path) -> Path:
    """A schedule within 32 bytes: one op runs twice."""
    path = tmp_path / "schedule.json"
    solution = solve(chain, 32, solver="heuristics")
    assert solution.schedule is not None
    write_schedule(path, solution.schedule, chain, {"budget": 32})
    return path


@pytest.fixture
def checkmate() -> Checkmate:
    """Run the command line; anything other than a clean exit fails the test."""

    def run(*arguments: object, input: bytes | None = None) -> Result:
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(app, words, input=input, prog_name="checkmate")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return result

    return run

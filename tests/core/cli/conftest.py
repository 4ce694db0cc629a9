"""A graph file, and the command line as a function; only built-in plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from checkmate import DFGraph, solve, write_graph, write_schedule
from checkmate.cli.app import app
from checkmate.model.schedule import Compute, Schedule
from checkmate.plugins import ExecutorSpec, FrontendSpec, StepReport, hookimpl, loader, reset

Checkmate = Callable[..., Result]


@pytest.fixture(autouse=True)
def only_built_in_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep other installed packages, and the user's cache, out of these tests."""
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(loader.ENVIRONMENT_VARIABLE, "")
    for name in ("CHECKMATE_GRAPHS", "CHECKMATE_INSTALLED", "COLUMNS", "FORCE_COLOR"):
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
    """A frontend whose programs are numbers of ops: half are layers, the others go back through them."""

    def trace(self, program: Callable[[], int], /, cost_model: str = "unit") -> Layers:
        n = program()
        deps = [[*{k - 1, n - 1 - k} & {*range(k)}] if k >= n // 2 else [*range(k)][-1:] for k in range(n)]
        graph = DFGraph.from_nodes(cost=[1] * n, size=[8] * n, deps=deps, name="layers")
        return Layers(replace(graph, cost_unit=cost_model))


@dataclass
class RunnableLayers:
    """Runs a program; the loss falls from step to step."""

    traced: Layers
    taken: int = 0

    def step(self, bound: Callable[[], int | None]) -> StepReport:
        self.taken += 1
        return StepReport(loss=1 / self.taken, peak=bound(), seconds=0.5)


@dataclass(frozen=True)
class LayersExecutor:
    """Holds bytes as the schedule says, and ``leak`` more; a leak of None is not measured."""

    leak: int | None = 0

    def prepare(self, program: Callable[[], int], /, **options: Any) -> RunnableLayers:
        return RunnableLayers(LayersFrontend().trace(program, **options))

    def bind(self, traced: Layers, schedule: Schedule) -> Callable[[], int | None]:
        def run() -> int | None:
            held: dict[int, bytes] = {}
            peak = 0
            for step in schedule:
                if isinstance(step, Compute):
                    held |= {t: bytes(8) for t in traced.graph.ops[step.op].outputs}
                    peak = max(peak, sum(map(len, held.values())))
                else:
                    del held[step.tensor]
            return None if self.leak is None else peak + self.leak

        return run


@pytest.fixture
def offer(plug: Callable[..., None]) -> Callable[..., None]:
    """Install an executor by the name ``torch``, by default the one above, and the frontend of that name."""

    def offer(executor: object = None, *, features: Iterable[str] = ("reorders",), **traits: Any) -> None:
        runs = ExecutorSpec(
            name="torch",
            summary="runs layers",
            load=lambda: executor or LayersExecutor(**traits),  # type: ignore[arg-type, return-value]
            features=frozenset(features),
        )
        traces = FrontendSpec(name="torch", summary="counts layers", load=LayersFrontend)

        class LayersPlugin:
            checkmate_register_frontends = staticmethod(hookimpl(lambda: [traces]))
            checkmate_register_executors = staticmethod(hookimpl(lambda: [runs]))

        plug(("layers", lambda: LayersPlugin))

    return offer


@pytest.fixture
def layers(offer: Callable[..., None]) -> None:
    """Install a frontend and an executor ``torch``, whose programs return their number of ops."""
    offer()


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

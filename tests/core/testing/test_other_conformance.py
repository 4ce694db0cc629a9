"""Frontends and exporters: each check finds its fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from checkmate import DFGraph, Op, Tensor, Timeline
from checkmate.generators import chain
from checkmate.testing import ExporterConformance, FrontendConformance


@dataclass(frozen=True)
class Program:
    graph: DFGraph


def checks(kit: type) -> set[str]:
    return {name.removeprefix("test_") for name in dir(kit) if name.startswith("test_")}


class Traces(FrontendConformance):
    """A program of this frontend is a number of layers."""

    def frontend(self) -> Any:
        return self

    def programs(self) -> Iterable[tuple[Any, ...]]:
        return [(2,), (3,)]

    def trace(self, layers: int) -> Any:
        return Program(chain(layers))


class TracesNothing(Traces):
    def programs(self) -> Iterable[tuple[Any, ...]]:
        return []


class TracesAList(Traces):
    def trace(self, layers: int) -> Any:
        return Program([])  # type: ignore[arg-type]


class ForgetsOutputs(Traces):
    def trace(self, layers: int) -> Any:
        return Program(replace(chain(layers), outputs=()))


class ForgetsBytes(Traces):
    def trace(self, layers: int) -> Any:
        return Program(DFGraph.from_nodes(cost=[1], size=[0], deps=[[]]))


class NamesWithoutText(Traces):
    def trace(self, layers: int) -> Any:
        op = Op(name=b"raw", inputs=(), outputs=(0,), cost=1)  # type: ignore[arg-type]
        return Program(DFGraph(ops=(op,), tensors=(Tensor(name="t", size=1),), outputs=(0,)))


class Whimsical(Traces):
    traced = 0

    def trace(self, layers: int) -> Any:
        self.traced += 1
        return Program(replace(chain(layers), fixed_size=self.traced))


FRONTENDS = [
    ("traces", TracesNothing),
    ("traces", TracesAList),
    ("computes_something", ForgetsOutputs),
    ("computes_something", ForgetsBytes),
    ("survives_the_wire", NamesWithoutText),
    ("deterministic", Whimsical),
]


def test_a_right_frontend_passes_every_check(failing) -> None:
    assert failing(Traces()) == {}
    assert checks(FrontendConformance) == {check for check, _ in FRONTENDS}


@pytest.mark.parametrize(("check", "frontend"), FRONTENDS)
def test_a_wrong_frontend_fails_the_check_for_its_fault_and_no_other(
    failing, check: str, frontend: Any
) -> None:
    assert set(failing(frontend())) == {check}


class Exports(ExporterConformance):
    def exporter(self) -> Any:
        return self

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        file.write_text(repr(timeline), encoding="utf-8")


class WritesNothing(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        pass


class ChokesOnTightBudgets(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        if budget is not None and timeline.peak > budget:
            raise ValueError("over budget")
        super().write(timeline, file)


class ChokesOnNames(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        parts = (*timeline.graph.ops, *timeline.graph.tensors)
        file.write_text(" ".join(["names", *(part.name for part in parts)]), encoding="ascii")


class WritesTwo(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        super().write(timeline, file)
        super().write(timeline, file.with_suffix(".log"))


class Scribbles(Exports):
    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        super().write(timeline, file)
        object.__setattr__(timeline, "peak", timeline.peak + 1)


EXPORTERS = [
    ("writes_its_file", WritesNothing),
    ("writes_its_file", ChokesOnNames),
    ("writes_its_file", ChokesOnTightBudgets),
    ("writes_nothing_else", WritesTwo),
    ("does_not_mutate", Scribbles),
]


def test_a_right_exporter_passes_every_check(failing) -> None:
    assert failing(Exports()) == {}
    assert checks(ExporterConformance) == {check for check, _ in EXPORTERS}


@pytest.mark.parametrize(("check", "exporter"), EXPORTERS)
def test_a_wrong_exporter_fails_the_check_for_its_fault_and_no_other(
    failing, check: str, exporter: Any
) -> None:
    assert set(failing(exporter())) == {check}

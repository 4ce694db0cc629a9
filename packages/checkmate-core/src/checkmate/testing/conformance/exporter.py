"""The laws of exporters: a timeline goes in, one file comes out."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import strategies as st

from checkmate.files.serialize import graph_bytes
from checkmate.model.graph import DFGraph
from checkmate.plugins import EXPORTERS, Exporter
from checkmate.problem.problem import Problem
from checkmate.simulate import Timeline, simulate
from checkmate.testing.code import graph_code, schedule_code
from checkmate.testing.conformance.harness import ConformanceError, ManyExamples, for_all
from checkmate.testing.conformance.variants import names, renamed
from checkmate.testing.strategies import graphs, valid_schedules

__all__ = ["ExporterConformance"]


class ExporterConformance(ManyExamples):
    """Override :meth:`exporter`, or set ``exporter_name``; and ``suffix``, unless a spec has it.

    Attributes:
        exporter_name: name of an installed exporter.
        suffix: suffix of the names of its files.
        examples: number of timelines that a check tries; ``--checkmate-examples`` overrides it.
    """

    exporter_name: str | None = None
    suffix: str | None = None
    examples: int = 10

    def exporter(self) -> Exporter:
        """A new exporter, for each example."""
        if self.exporter_name is None:
            raise NotImplementedError(f"{type(self).__name__}: set exporter_name, or override exporter()")
        return EXPORTERS.load(self.exporter_name)

    def test_writes_its_file(self) -> None:
        """``write`` raises nothing and leaves a file that is not empty; an older file is replaced."""

        def check(timeline: Timeline) -> None:
            with tempfile.TemporaryDirectory() as folder:
                file = self._file(folder)
                file.write_bytes(b"\0")
                try:
                    self.exporter().write(timeline, file, budget=None)
                    self.exporter().write(timeline, file, budget=max(1, timeline.peak - 1))
                except Exception as error:
                    raise _report(f"write() raised {type(error).__name__}: {error}", timeline) from error
                if not file.is_file() or file.read_bytes() in (b"", b"\0"):
                    raise _report(f"write() left no {file.name}, or an empty one", timeline)

        for_all(_timelines(), check, count=self.examples)

    def test_writes_nothing_else(self) -> None:
        """The exporter writes no other file."""

        def check(timeline: Timeline) -> None:
            with tempfile.TemporaryDirectory() as folder:
                if self._written(timeline, folder) is not None:
                    others = sorted(p.name for p in Path(folder).iterdir() if p != self._file(folder))
                    if others:
                        raise _report(f"write() left other files too: {others}", timeline)

        for_all(_timelines(), check, count=self.examples)

    def test_does_not_mutate(self) -> None:
        """Timeline, schedule and graph do not change."""

        def check(timeline: Timeline) -> None:
            before = _content(timeline)
            with tempfile.TemporaryDirectory() as folder:
                self._written(timeline, folder)
            if _content(timeline) != before:
                raise _report("the timeline was changed", timeline)

        for_all(_timelines(), check, count=self.examples)

    def _file(self, folder: str) -> Path:
        declared = {spec.name: spec.suffix for spec in EXPORTERS.specs()}.get(
            self.exporter_name or "", ".out"
        )
        return Path(folder) / f"schedule{self.suffix or declared}"

    def _written(self, timeline: Timeline, folder: str) -> Path | None:
        try:
            self.exporter().write(timeline, self._file(folder))
        except Exception:  # noqa: BLE001 - for another check
            return None
        return self._file(folder)


@st.composite
def _timelines(draw: st.DrawFn) -> Timeline:
    """Timelines of valid schedules, of graphs with names of every kind."""
    graph: DFGraph = draw(graphs())
    labels = draw(st.lists(names, min_size=3, max_size=8))
    graph = renamed(Problem(graph=graph, budget=1), labels).graph
    return simulate(graph, draw(valid_schedules(graph)))


def _content(timeline: Timeline) -> tuple[object, ...]:
    arrays = (timeline.memory, timeline.runs, timeline.schedule.codes, timeline.graph.sizes)
    return graph_bytes(timeline.graph), timeline.peak, timeline.cost, *(a.tobytes() for a in arrays)


def _report(message: str, timeline: Timeline) -> ConformanceError:
    graph, schedule = graph_code(timeline.graph), schedule_code(timeline.schedule)
    return ConformanceError(f"{message}\n\ngraph = {graph}\nschedule = {schedule}")

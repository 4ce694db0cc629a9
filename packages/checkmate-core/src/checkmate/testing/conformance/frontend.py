"""The laws of frontends: from a program comes a graph that the judge and solvers can use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from checkmate.analysis import needed_ops
from checkmate.files.serialize import graph_bytes, read_graph
from checkmate.model.graph import DFGraph
from checkmate.plugins import FRONTENDS, Frontend, Traced
from checkmate.problem.problem import keep_all_peak
from checkmate.testing.conformance.harness import ConformanceError, required

__all__ = ["FrontendConformance"]


class FrontendConformance:
    """Override :meth:`programs`; and :meth:`frontend`, or set ``frontend_name``.

    Attributes:
        frontend_name: name of an installed frontend.
    """

    frontend_name: str | None = None

    def frontend(self) -> Frontend:
        """A new frontend, for each check."""
        if self.frontend_name is None:
            raise NotImplementedError(f"{type(self).__name__}: set frontend_name, or override frontend()")
        return FRONTENDS.load(self.frontend_name)

    def programs(self) -> Iterable[tuple[Any, ...]]:
        """Programs to trace, each with the other positional arguments of ``trace``; new in each call."""
        raise NotImplementedError(f"{type(self).__name__}: override programs()")

    def test_traces(self) -> None:
        """There is a program, and ``trace`` returns an object with a DFGraph for each.

        A DFGraph is valid by construction: its ops come after the producers of their inputs.
        """

        def check() -> None:
            programs = list(self.programs())
            if not programs:
                raise ConformanceError("programs() gives none: there is nothing to check")
            for i, (program, *others) in enumerate(programs):
                try:
                    graph: object = self.frontend().trace(program, *others).graph
                except Exception as error:
                    raise ConformanceError(
                        f"program {i}: trace() raised {type(error).__name__}: {error}"
                    ) from error
                if not isinstance(graph, DFGraph):
                    raise ConformanceError(
                        f"program {i}: the graph is a {type(graph).__name__}, not a DFGraph"
                    )

        required(check)

    def test_computes_something(self) -> None:
        """Some op is needed for the graph outputs and makes bytes: otherwise budgets are meaningless."""

        def check() -> None:
            for i, graph in self._graphs():
                if not needed_ops(graph).any():
                    raise ConformanceError(f"program {i}: no op is needed for the outputs of {graph!r}")
                if keep_all_peak(graph) == graph.base_size:
                    raise ConformanceError(f"program {i}: no op of {graph!r} makes a tensor of any bytes")

        required(check)

    def test_survives_the_wire(self) -> None:
        """The graph can be written to a file and read back."""

        def check() -> None:
            for i, graph in self._graphs():
                try:
                    same = read_graph(graph_bytes(graph)) == graph
                except Exception as error:
                    message = f"program {i}: {graph!r} can't be written and read back"
                    raise ConformanceError(f"{message}: {type(error).__name__}: {error}") from error
                if not same:
                    raise ConformanceError(
                        f"program {i}: {graph!r} is another graph after writing and reading"
                    )

        required(check)

    def test_deterministic(self) -> None:
        """Traced again, a program has the same digest, which the cache of schedules relies on."""

        def check() -> None:
            for (i, one), (_, other) in zip(self._graphs(), self._graphs(), strict=True):
                if one.digest != other.digest:
                    raise ConformanceError(
                        f"program {i}: traced again, {one!r} has another digest: {other!r}"
                    )

        required(check)

    def _graphs(self) -> Iterator[tuple[int, DFGraph]]:
        """The graphs, numbered; programs that can't be traced are skipped: another check reports them."""
        for i, (program, *others) in enumerate(self.programs()):
            try:
                traced: Traced = self.frontend().trace(program, *others)
                graph: object = traced.graph
            except Exception:  # noqa: BLE001 - what it may be is the frontend's choice
                continue
            if isinstance(graph, DFGraph):
                yield i, graph

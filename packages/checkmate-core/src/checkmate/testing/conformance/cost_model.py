"""The laws of cost models: a graph goes in, the same graph with other costs comes out."""

from __future__ import annotations

import math
import pickle  # noqa: TID251 - nothing is stored: process pools of the standard library send values so
from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from checkmate.errors import CostError
from checkmate.model.graph import DFGraph
from checkmate.plugins import COST_MODELS, CostModel
from checkmate.testing.code import graph_code
from checkmate.testing.conformance.harness import ConformanceError, ManyExamples, for_all
from checkmate.testing.strategies import graphs, spread

__all__ = ["CostModelConformance"]


class CostModelConformance(ManyExamples):
    """Override :meth:`cost_model`, or set ``cost_model_name``; and :meth:`graphs`, if it prices only some.

    A model may refuse a graph with a ``CostError``; a check then skips that graph.

    Attributes:
        cost_model_name: name of an installed cost model.
        examples: number of graphs that a check tries; ``--checkmate-examples`` overrides it.
    """

    cost_model_name: str | None = None
    examples: int = 60

    def cost_model(self) -> CostModel:
        """A new cost model, for each example."""
        if self.cost_model_name is None:
            raise NotImplementedError(f"{type(self).__name__}: set cost_model_name, or override cost_model()")
        return COST_MODELS.load(self.cost_model_name)

    def graphs(self) -> st.SearchStrategy[DFGraph]:
        """The graphs to try; by default of every kind, the empty one included."""
        return st.one_of(spread(graphs()), st.just(DFGraph(ops=(), tensors=())))

    def test_answers(self) -> None:
        """``annotate`` returns a graph, or raises CostError."""

        def check(graph: DFGraph) -> None:
            try:
                answer: object = self.cost_model().annotate(graph)
            except CostError:
                return
            except Exception as error:
                raise _report(f"annotate() raised {type(error).__name__}: {error}", graph) from error
            if not isinstance(answer, DFGraph):
                raise _report(f"annotate() returned a {type(answer).__name__}, not a DFGraph", graph)

        for_all(self.graphs(), check, count=self.examples)

    def test_changes_only_costs(self) -> None:
        """Everything but the costs and their unit stays: ops, tensors, sizes, names, order."""

        def check(graph: DFGraph, priced: DFGraph) -> None:
            ops = tuple(replace(op, cost=0.0) for op in priced.ops)
            bare = replace(priced, ops=ops, cost_unit="")
            expected = replace(graph, ops=tuple(replace(op, cost=0.0) for op in graph.ops), cost_unit="")
            if bare != expected or priced.name != graph.name:
                raise _report(f"more than costs has changed: {graph_code(priced)}", graph)

        self._check(check)

    def test_costs_are_costs(self) -> None:
        """Every cost is finite and at least 0, and the unit is a text."""

        def check(graph: DFGraph, priced: DFGraph) -> None:
            unit: object = priced.cost_unit
            if not isinstance(unit, str):
                raise _report(f"the cost unit is {unit!r}, not a text", graph)
            for i, op in enumerate(priced.ops):
                if not (math.isfinite(op.cost) and op.cost >= 0):
                    raise _report(f"{priced.op_label(i)} costs {op.cost!r}", graph)

        self._check(check)

    def test_deterministic(self) -> None:
        """The same graph gets the same costs again."""

        def check(graph: DFGraph, priced: DFGraph) -> None:
            if (again := self._priced(graph)) != priced:
                raise _report(f"priced again, the costs differ: {_costs(priced)}, {_costs(again)}", graph)

        self._check(check)

    def test_does_not_mutate(self) -> None:
        """The input graph does not change."""

        def check(graph: DFGraph) -> None:
            asked, pristine = replace(graph), replace(graph)
            asked.costs  # noqa: B018 - derived now, so that it can be changed
            self._priced(asked)
            if asked != pristine or asked.costs.tobytes() != pristine.costs.tobytes():
                raise _report("the input graph was changed; its former state is below", pristine)

        for_all(self.graphs(), check, count=self.examples)

    def test_picklable(self) -> None:
        """The model survives ``pickle``, so that a process pool can use it."""

        def check(graph: DFGraph, priced: DFGraph) -> None:
            try:
                model: CostModel = pickle.loads(pickle.dumps(self.cost_model()))  # noqa: S301 - our own bytes
            except Exception as error:
                raise ConformanceError(f"it can't be pickled: {type(error).__name__}: {error}") from error
            if type(model) is not type(self.cost_model()):
                raise _report("after pickle the costs differ", graph)

        self._check(check)

    def _priced(self, graph: DFGraph) -> DFGraph | None:
        """The priced graph; None if the model returns no graph, which another check reports."""
        try:
            answer: object = self.cost_model().annotate(graph)
        except Exception:  # noqa: BLE001 - what it may be is the model's choice
            return None
        return answer if isinstance(answer, DFGraph) else None

    def _check(self, check: Callable[[DFGraph, DFGraph], None]) -> None:
        __tracebackhide__ = True

        def priced(graph: DFGraph) -> None:
            if (answer := self._priced(replace(graph))) is not None:
                check(graph, answer)

        for_all(self.graphs(), priced, count=self.examples)


def _costs(graph: DFGraph | None) -> list[float] | None:
    return None if graph is None else [op.cost for op in graph.ops]


def _report(message: str, graph: DFGraph) -> ConformanceError:
    return ConformanceError(f"{message}\n\ngraph = {graph_code(graph)}")

"""Each check of cost models finds its fault, in a model that has no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from checkmate import CostError, DFGraph
from checkmate.plugins import CostModel
from checkmate.testing import CostModelConformance


def priced(graph: DFGraph, cost: float = 1.0) -> DFGraph:
    ops = tuple(replace(op, cost=cost * len(op.outputs)) for op in graph.ops)
    return replace(graph, ops=ops, cost_unit="outputs")


@dataclass(frozen=True)
class Model:
    annotate: Callable[[DFGraph], Any]


def refuses_some(graph: DFGraph) -> Any:
    if graph.n_ops > 3:
        raise CostError("too many ops")
    return priced(graph)


def raises(graph: DFGraph) -> Any:
    return priced(graph, 1 / graph.n_ops)


def another_type(graph: DFGraph) -> Any:
    return priced(graph).costs if graph.n_ops > 2 else priced(graph)


def resizes(graph: DFGraph) -> Any:
    return replace(priced(graph), fixed_size=graph.fixed_size + 1)


def renames(graph: DFGraph) -> Any:
    return replace(priced(graph), name="priced")


def infinite(graph: DFGraph) -> Any:
    answer = priced(graph)
    for op in answer.ops:
        object.__setattr__(op, "cost", math.inf)
    return answer


class _Counter:
    asked = 0


def whimsical(graph: DFGraph) -> Any:
    _Counter.asked += 1
    return priced(graph, _Counter.asked)


def overwrites(graph: DFGraph) -> Any:
    object.__setattr__(graph, "cost_unit", "outputs")
    return priced(graph)


@dataclass(frozen=True)
class Unpicklable:
    def annotate(self, graph: DFGraph) -> DFGraph:
        return priced(graph)

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


FAULTS: list[tuple[str, CostModel]] = [
    ("answers", Model(raises)),
    ("answers", Model(another_type)),
    ("changes_only_costs", Model(resizes)),
    ("changes_only_costs", Model(renames)),
    ("costs_are_costs", Model(infinite)),
    ("deterministic", Model(whimsical)),
    ("does_not_mutate", Model(overwrites)),
    ("picklable", Unpicklable()),
]


def checked(model: CostModel) -> CostModelConformance:
    class Case(CostModelConformance):
        examples = 30

        def cost_model(self) -> CostModel:
            return model

    return Case()


@pytest.mark.parametrize("model", [Model(priced), Model(refuses_some)], ids=["prices", "refuses"])
def test_a_right_model_passes_every_check(failing, model: CostModel) -> None:
    assert failing(checked(model)) == {}


@pytest.mark.parametrize(("check", "model"), FAULTS)
def test_a_wrong_model_fails_the_check_for_its_fault_and_no_other(
    failing, check: str, model: CostModel
) -> None:
    assert set(failing(checked(model))) == {check}


def test_every_check_has_a_wrong_model() -> None:
    checks = {name.removeprefix("test_") for name in dir(CostModelConformance) if name.startswith("test_")}
    assert checks == {check for check, _ in FAULTS}

"""Laws of every cost model: only costs and their unit change; memory by the judge stays the same."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import CostError, DFGraph, GraphError, simulate
from checkmate.cost import Roofline, TableCost, UnitCost, with_costs
from checkmate.plugins import COST_MODELS, CostModel
from checkmate.testing.strategies import graphs, valid_schedules

MODELS: list[CostModel] = [
    UnitCost(),
    TableCost(costs={"op0": 3.5}),
    Roofline(flops_per_s=2.0, bytes_per_s=3.0, launch_s=0.5),
    Roofline.of("H100-80GB", "bf16"),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
@given(data=st.data())
def test_only_costs_change(model: CostModel, data: st.DataObject) -> None:
    graph = replace(data.draw(graphs()), cost_unit="flop", name="kept")
    before = copy.deepcopy(graph)
    annotated = model.annotate(graph)
    assert graph == before
    costs = [op.cost for op in graph.ops]
    assert with_costs(annotated, costs, "flop") == graph
    assert annotated.name == "kept"
    same = annotated.cost_unit == "flop" and [op.cost for op in annotated.ops] == costs
    assert (annotated.digest == graph.digest) == same
    schedule = data.draw(valid_schedules(graph))
    assert simulate(annotated, schedule).memory.tolist() == simulate(graph, schedule).memory.tolist()


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_models_are_values(model: CostModel) -> None:
    twin = copy.deepcopy(model)
    assert twin == model
    assert hash(twin) == hash(model)
    for field in fields(model):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(model, field.name, 1)


def test_those_that_need_no_settings_have_names() -> None:
    names = [spec.name for spec in COST_MODELS.specs()]
    assert {"unit", "roofline-A100-80GB"} <= set(names)
    assert COST_MODELS.load("unit") == UnitCost()
    assert COST_MODELS.load("roofline-A100-80GB") == Roofline.of("A100-80GB", "fp32")


def test_there_is_one_cost_for_each_op() -> None:
    graph = DFGraph.from_nodes(cost=[1, 2], size=[1, 1], deps=[[], [0]])
    with pytest.raises(CostError, match="1 costs for 2 ops"):
        with_costs(graph, [1.0], "s")
    with pytest.raises(GraphError, match=r"ops\[1\].*cost is nan"):
        with_costs(graph, [1.0, float("nan")], "s")
    for nonsense in ("dear", None, 10**400):
        with pytest.raises(CostError, match="must be a number"):
            with_costs(graph, [1.0, nonsense], "s")  # type: ignore[list-item]
    assert with_costs(graph, iter([1, 2]), "s").ops == graph.ops

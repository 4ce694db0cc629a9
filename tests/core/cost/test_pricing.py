"""Laws of new costs: the unit cost counts computes; a table changes the ops that it lists, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import CostError, DFGraph, GraphError, simulate
from checkmate.cost import TableCost, UnitCost
from checkmate.testing.strategies import graphs, valid_schedules

NET = DFGraph.from_nodes(
    cost=[1, 2, 3], size=[4] * 3, deps=[[], [0], [1]], names=["conv1", "relu", "relu"], cost_unit="s"
)


@given(graphs(), st.data())
def test_listed_ops_have_the_listed_costs(graph: DFGraph, data: st.DataObject) -> None:
    names = st.sampled_from([op.name for op in graph.ops])
    costs = data.draw(st.dictionaries(names, st.floats(0, 1e6)))
    annotated = TableCost(costs=costs).annotate(graph)
    assert [op.cost for op in annotated.ops] == [costs.get(op.name, op.cost) for op in graph.ops]
    assert annotated.cost_unit == graph.cost_unit


def test_a_new_unit_needs_every_op() -> None:
    graph = DFGraph.from_nodes(cost=[1, 2], size=[4, 4], deps=[[], [0]], cost_unit="flop")
    annotated = TableCost(costs={"0": 7, "1": 8}, unit="s").annotate(graph)
    assert ([op.cost for op in annotated.ops], annotated.cost_unit) == ([7.0, 8.0], "s")
    with pytest.raises(
        CostError, match=r"costs are in 's' but the graph's in 'flop'.* 1 are not, the first '0'"
    ):
        TableCost(costs={"1": 8}, unit="s").annotate(graph)
    assert TableCost(costs={"1": 8}, unit="flop").annotate(graph).ops[0].cost == 1


def test_unknown_and_ambiguous_names_are_refused() -> None:
    with pytest.raises(CostError, match="no op 'conv'; did you mean 'conv1'"):
        TableCost(costs={"conv": 1}).annotate(NET)
    with pytest.raises(CostError, match="no op 'softmax'; remove it"):
        TableCost(costs={"softmax": 1}).annotate(NET)
    with pytest.raises(CostError, match="2 ops are called 'relu'"):
        TableCost(costs={"relu": 1}).annotate(NET)
    with pytest.raises(GraphError, match="cost is -1"):
        TableCost(costs={"conv1": -1}).annotate(NET)


def test_the_table_is_private() -> None:
    costs = {"conv1": 5.0}
    model = TableCost(costs=costs)
    costs["conv1"] = 6.0
    assert model.annotate(NET).ops[0].cost == 5.0


@given(data=st.data())
def test_the_cost_of_a_schedule_is_its_number_of_computes(data: st.DataObject) -> None:
    graph = UnitCost().annotate(data.draw(graphs()))
    schedule = data.draw(valid_schedules(graph))
    assert simulate(graph, schedule).cost == len(schedule.sequence)
    assert graph.cost_unit == "1"

"""Laws of new costs: the unit cost counts computes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkmate import simulate
from checkmate.cost import UnitCost
from checkmate.testing.strategies import graphs, valid_schedules


@given(data=st.data())
def test_the_cost_of_a_schedule_is_its_number_of_computes(data: st.DataObject) -> None:
    graph = UnitCost().annotate(data.draw(graphs()))
    schedule = data.draw(valid_schedules(graph))
    assert simulate(graph, schedule).cost == len(schedule.sequence)
    assert graph.cost_unit == "1"

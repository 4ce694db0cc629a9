"""Laws of scaling: the ideal cost becomes the given total; overheads stay."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkmate import CostError, DFGraph, simulate
from checkmate.cost import ScaledCost
from checkmate.testing.strategies import graphs, valid_schedules


@given(st.data(), st.floats(1e-6, 1e6))
def test_overheads_stay_and_the_total_is_the_given_one(data: st.DataObject, total: float) -> None:
    graph = data.draw(graphs())
    assume(graph.ideal_cost > 0)
    schedule = data.draw(valid_schedules(graph))
    before = simulate(graph, schedule)
    scaled = ScaledCost(total=total).annotate(graph)
    assert scaled.ideal_cost == pytest.approx(total)
    assert simulate(scaled, schedule).overhead == pytest.approx(before.overhead, abs=1e-9)
    by_factor = ScaledCost(factor=total, unit="ms").annotate(graph)
    assert simulate(by_factor, schedule).cost == pytest.approx(before.cost * total)
    assert (scaled.cost_unit, by_factor.cost_unit) == ("1", "ms")


@given(st.data())
def test_by_default_the_cost_is_one_plus_the_overhead(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    assume(graph.ideal_cost > 0)
    timeline = simulate(ScaledCost().annotate(graph), data.draw(valid_schedules(graph)))
    assert timeline.cost == pytest.approx(1 + timeline.overhead)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(CostError, match="both given"):
        ScaledCost(factor=1.0, total=1.0)
    for settings in ({"factor": 0.0}, {"total": -1.0}, {"factor": float("nan")}):
        with pytest.raises(CostError, match="must be a finite number > 0"):
            ScaledCost(**settings)  # type: ignore[arg-type]
    with pytest.raises(CostError, match="no factor makes that"):
        ScaledCost().annotate(DFGraph.from_nodes(cost=[0], size=[1], deps=[[]]))

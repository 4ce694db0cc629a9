"""Laws of quantisation: multiples, rounded up by less than one; and the loss of optimising them."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from checkmate import CostError, DFGraph, Problem, floor, keep_all_peak, simulate
from checkmate.cost import QuantisedCost, with_costs
from checkmate.testing.oracle import cheapest_schedule
from checkmate.testing.strategies import graphs, valid_schedules

MODELS = st.one_of(
    st.builds(QuantisedCost, quantum=st.floats(1e-3, 10)),
    st.builds(QuantisedCost, levels=st.integers(1, 1000)),
    st.just(QuantisedCost()),
)


@st.composite
def priced(draw: st.DrawFn) -> DFGraph:
    """Graphs whose costs are any floats."""
    graph = draw(graphs())
    return with_costs(graph, [draw(st.floats(0, 100, allow_subnormal=False)) for _ in graph.ops], "s")


@given(priced(), MODELS)
def test_costs_are_rounded_up_to_multiples(graph: DFGraph, model: QuantisedCost) -> None:
    quantum = model.quantum_of(graph)
    for before, after in zip(graph.ops, model.annotate(graph).ops, strict=True):
        assert after.cost / quantum == pytest.approx(round(after.cost / quantum), rel=1e-9)
        assert before.cost * (1 - 1e-9) <= after.cost < before.cost + quantum * (1 + 1e-9)
        assert (after.cost > 0) == (before.cost > 0)


@given(priced(), MODELS)
def test_twice_is_once(graph: DFGraph, model: QuantisedCost) -> None:
    once = model.annotate(graph)
    assert [op.cost for op in model.annotate(once).ops] == pytest.approx([op.cost for op in once.ops])
    assert once.cost_unit == "s"


@given(priced(), st.integers(1, 50))
def test_levels_are_that_many_at_most(graph: DFGraph, levels: int) -> None:
    costs = {op.cost for op in QuantisedCost(levels=levels).annotate(graph).ops}
    assert len(costs - {0.0}) <= levels


@settings(max_examples=200)
@given(st.data(), MODELS)
def test_the_best_by_rounded_costs_is_nearly_the_best(data: st.DataObject, model: QuantisedCost) -> None:
    """The bound that the module proves, for any set of schedules instead of those within a budget."""
    graph = data.draw(priced())
    rounded, quantum = model.annotate(graph), model.quantum_of(graph)
    pool = data.draw(st.lists(valid_schedules(graph), min_size=2, max_size=6))
    best = min(pool, key=lambda schedule: simulate(graph, schedule).cost)
    chosen = min(pool, key=lambda schedule: simulate(rounded, schedule).cost)
    inexact = [
        abs(new.cost - old.cost) > 1e-9 * old.cost for old, new in zip(graph.ops, rounded.ops, strict=True)
    ]
    computes = sum(inexact[v] for v in best.sequence)
    allowed = simulate(graph, best).cost + quantum * computes
    assert simulate(graph, chosen).cost <= allowed * (1 + 1e-8)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 4))
def test_the_true_optimum_within_a_budget_moves_by_no_more(data: st.DataObject, levels: int) -> None:
    """The same with the oracle's optima; few levels, so that the optimum moves."""
    graph = data.draw(priced())
    model = QuantisedCost(levels=levels)
    rounded = model.annotate(graph)
    budget = data.draw(st.integers(max(floor(graph).size, 1), max(keep_all_peak(graph), 1)))
    best = cheapest_schedule(Problem(graph=graph, budget=budget))
    chosen = cheapest_schedule(Problem(graph=rounded, budget=budget))
    assert (best is None) == (chosen is None)
    if best is None or chosen is None:
        return
    true, got = simulate(graph, best).cost, simulate(graph, chosen).cost
    event("moved" if got > true * (1 + 1e-9) else "stayed")
    assert true * (1 - 1e-9) <= got <= (true + model.quantum_of(graph) * len(best.sequence)) * (1 + 1e-9)


def test_the_optimum_does_move() -> None:
    """Room for y or x3 beside m. Three ops of 0.4 cost less than one of 1.9, and more when rounded up."""
    graph = DFGraph.from_nodes(
        names=["y", "x1", "x2", "x3", "m", "z", "end"],
        cost=[1.9, 0.4, 0.4, 0.4, 0, 0, 0],
        size=[1, 1, 1, 1, 3, 1, 1],
        deps=[[], [], [1], [2], [], [4], [0, 3, 5]],
    )
    rounded = QuantisedCost(quantum=1.0).annotate(graph)
    answers = [cheapest_schedule(Problem(graph=g, budget=5, fixed_order=True)) for g in (graph, rounded)]
    costs = [simulate(graph, answer).overhead * graph.ideal_cost for answer in answers if answer]
    assert costs == pytest.approx([1.2, 1.9])


def test_costs_of_0_stay() -> None:
    graph = DFGraph.from_nodes(cost=[0, 0], size=[1, 1], deps=[[], []])
    assert QuantisedCost().annotate(graph) == graph
    assert QuantisedCost().annotate(DFGraph(ops=(), tensors=())) == DFGraph(ops=(), tensors=())


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(CostError, match="both given"):
        QuantisedCost(quantum=1.0, levels=3)
    with pytest.raises(CostError, match="quantum is 0, must be a finite number > 0"):
        QuantisedCost(quantum=0)
    for levels in (0, 2.5, True):
        with pytest.raises(CostError, match=r"levels is .*, must be an integer > 0"):
            QuantisedCost(levels=levels)  # type: ignore[arg-type]
    graph = DFGraph.from_nodes(cost=[1e20], size=[1], deps=[[]])
    with pytest.raises(CostError, match="take a larger quantum"):
        QuantisedCost(quantum=1.0).annotate(graph)

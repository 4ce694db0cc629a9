"""The dynamic programme: it keeps its word to the byte, and is optimal where that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, Schedule, Status, keep_all_peak, simulate
from checkmate.generators import chain, residual, transformer
from checkmate.testing import SolverConformance, optimum
from checkmate_solvers.chains import Chain, ChainDP, Revolve, recognise
from checkmate_solvers.chains.dynamic import NestedSchedules
from checkmate_solvers.chains.sections import sections

from .strategies import KNOWN_CHAINS, training_chains


class TestConformance(SolverConformance):
    solver_name = "chain-dp"
    examples = 30


class TestConformanceInRoughUnits(SolverConformance):
    guarantee = "heuristic"
    features = frozenset()
    examples = 25

    def solver(self) -> ChainDP:
        return ChainDP(sections=2, units=7)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[Chain, NestedSchedules, int]:
    found = recognise(draw(training_chains(most_layers=7)))
    assume(isinstance(found, Chain))
    assert isinstance(found, Chain)
    inner = st.sets(st.integers(1, found.length))
    cuts = sorted(draw(inner) | {found.length})
    rows, base_size = sections(found, cuts)
    room = max(keep_all_peak(found.graph) - base_size, 0)
    return found, NestedSchedules(rows, room, draw(st.sampled_from([5, 10_000]))), base_size


@given(_tables())
def test_every_entry_is_the_cost_of_a_schedule_within_its_budget(
    drawn: tuple[Chain, NestedSchedules, int],
) -> None:
    found, table, base_size = drawn
    graph = found.graph
    backward = sum(graph.ops[v].cost for block in found.blocks for v in block)
    for column in np.flatnonzero(np.isfinite(table.costs)).tolist():
        sequence = table.sequence(column)
        timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
        assert timeline.peak <= base_size + int(table.budgets[column])
        assert timeline.cost == pytest.approx(table.costs[column] + backward)


@given(_tables())
def test_more_bytes_never_cost_more(drawn: tuple[Chain, NestedSchedules, int]) -> None:
    costs = drawn[1].costs
    finite = costs[np.isfinite(costs)]
    assert np.isinf(costs[: len(costs) - len(finite)]).all()
    assert (np.diff(finite) <= 1e-9).all()


@given(training_chains(), st.data())
def test_it_never_costs_more_than_revolve(graph: DFGraph, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, keep_all_peak(graph)))
    problem = Problem(graph=graph, budget=budget)
    assert optimum(problem) <= ChainDP().solve(problem).cost <= Revolve().solve(problem).cost


@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize(("layers", "budget", "least"), KNOWN_CHAINS)
def test_it_is_optimal_on_the_known_chains(layers: int, budget: int, least: float, fixed_order: bool) -> None:
    found = ChainDP().solve(Problem(graph=chain(layers), budget=budget, fixed_order=fixed_order))
    assert found.cost == least
    assert (found.status is Status.INFEASIBLE) == math.isinf(least)


@given(st.integers(2, 5), st.integers(1, 9), st.integers(1, 5))
def test_it_is_optimal_on_chains_of_equal_layers(layers: int, size: int, spare: int) -> None:
    problem = Problem(graph=chain(layers, size=size), budget=size * spare + size // 2 + 1)
    assert ChainDP().solve(problem).cost == Revolve().solve(problem).cost == optimum(problem)


@pytest.mark.parametrize(("layers", "cost"), [(16, 42), (32, 82), (64, 162)])
def test_chains_at_half_the_memory(layers: int, cost: float) -> None:
    """The costs of revolve, which for equal layers are the least number of forward steps."""
    graph = chain(layers)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2)
    assert ChainDP().solve(problem).cost == Revolve().solve(problem).cost == cost


def test_unequal_layers_are_where_it_pays() -> None:
    graph = chain(64, cost="random")
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2)
    assert ChainDP().solve(problem).cost < 0.95 * Revolve().solve(problem).cost


@pytest.mark.parametrize("layers", [200, 1500])
def test_long_chains_are_cut_into_sections(layers: int) -> None:
    graph = chain(layers, cost="random")
    problem = Problem(graph=graph, budget=keep_all_peak(graph) * 2 // 5)
    assert ChainDP(sections=40, units=100).solve(problem).overhead < 0.25


def test_when_the_time_is_up_it_stops() -> None:
    graph = chain(200)
    problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2, time_limit=1e-6)
    assert ChainDP().solve(problem).status is Status.UNKNOWN


def test_a_real_net_without_branches() -> None:
    graph = residual(0)
    found = ChainDP().solve(Problem(graph=graph, budget=keep_all_peak(graph) - 1))
    assert found.status is Status.FEASIBLE


def test_a_graph_that_is_no_chain_is_unknown_below_its_peak() -> None:
    graph = transformer(1)
    assert ChainDP().solve(Problem(graph=graph, budget=keep_all_peak(graph) - 1)).status is Status.UNKNOWN


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="sections is 0"):
        ChainDP(sections=0)

"""After any change by the search, its arrays agree with a plain pass and with the simulator."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Schedule, simulate
from checkmate.analysis import liveness, needed_ops
from checkmate.testing.strategies import budgets, graphs, training_steps, valid_schedules
from checkmate_solvers.machine.arrays import (
    ANY_BUDGET,
    BEST,
    BEST_LENGTH,
    BLOCKS,
    COST,
    REPEATED,
    TEMPERATURE,
    State,
    state_of,
)
from checkmate_solvers.machine.library import search

NOTHING = np.zeros(0, dtype=np.int64)
GRAPHS = st.one_of(graphs(), graphs(recomputable=True), training_steps())


def _loaded(graph: DFGraph, sequence: list[int], fixed_order: bool = False, seed: int = 0) -> State:
    state = state_of(graph, fixed_order=fixed_order, seed=seed, longest=len(sequence))
    search(state, np.array(sequence, dtype=np.int64), ANY_BUDGET)
    return state


def _agrees(graph: DFGraph, state: State, seen) -> list[int]:
    """The sequence of a state, whose every number was checked."""
    ops, memory = seen(state)
    assert memory == (liveness(graph, ops).memory - graph.base_size).tolist()
    assert np.isclose(state.totals[COST], graph.costs[ops].sum(), rtol=1e-9, atol=1e-9)
    filled = [b for b in range(state.counts[BLOCKS]) if state.filled[b] > 0]
    assert max(state.most[b] for b in filled) >= max(memory, default=0)
    runs = np.bincount(np.array(ops, dtype=np.int64), minlength=graph.n_ops)
    assert state.runs[:-1].tolist() == runs.tolist()
    repeated = state.repeated[: state.counts[REPEATED]].tolist()
    assert sorted(repeated) == np.flatnonzero(runs > 1).tolist()
    timeline = simulate(graph, Schedule.from_sequence(graph, ops))
    assert timeline.peak == graph.base_size + max(memory, default=0)
    return ops


@given(data=st.data(), graph=GRAPHS)
def test_a_loaded_sequence_agrees_with_the_simulator(data, seen, graph: DFGraph) -> None:
    sequence = data.draw(valid_schedules(graph)).sequence.tolist()
    state = _loaded(graph, sequence)
    assert _agrees(graph, state, seen) == sequence


@given(data=st.data(), graph=GRAPHS, fixed_order=st.booleans(), seed=st.integers(0, 99))
def test_no_round_breaks_anything(data, seen, graph: DFGraph, fixed_order: bool, seed: int) -> None:
    """Bytes, costs, budget, order and every promise of the graph hold after each round, hot or cold."""
    budget = data.draw(budgets(graph)) - graph.base_size
    needed = np.flatnonzero(needed_ops(graph)).tolist()
    state = _loaded(graph, needed, fixed_order, seed)
    fits = search(state, NOTHING, budget, steps=100, samples=3) >= 0
    _agrees(graph, state, seen)
    if not fits:
        return
    state.totals[TEMPERATURE] = data.draw(st.sampled_from([0.0, 0.5, 10.0]))
    for rounds in (1, 1, 1, 1, 1, 20):
        search(state, NOTHING, budget, rounds=rounds, cooling=0.99, samples=3)
        ops = _agrees(graph, state, seen)
        assert liveness(graph, ops).peak - graph.base_size <= budget
        if fixed_order:
            first = list(dict.fromkeys(ops))
            assert [v for v in first if v in needed] == needed
    best = state.best[: state.counts[BEST_LENGTH]].tolist()
    judged = simulate(graph, Schedule.from_sequence(graph, best))
    assert judged.peak <= budget + graph.base_size
    assert np.isclose(judged.cost, state.totals[BEST])
    assert state.totals[BEST] <= state.totals[COST] + 1e-9


@given(data=st.data(), graph=GRAPHS)
def test_a_successful_repair_is_within_the_budget(data, seen, graph: DFGraph) -> None:
    budget = data.draw(budgets(graph)) - graph.base_size
    sequence = data.draw(valid_schedules(graph)).sequence.tolist()
    state = _loaded(graph, sequence)
    fits = search(state, NOTHING, budget, steps=data.draw(st.integers(1, 50)), samples=2) >= 0
    ops = _agrees(graph, state, seen)
    if fits:
        assert simulate(graph, Schedule.from_sequence(graph, ops)).peak <= budget + graph.base_size
        assert state.best[: state.counts[BEST_LENGTH]].tolist() == ops


@given(graph=training_steps(), seed=st.integers(0, 9), cut=st.integers(1, 29))
def test_how_rounds_are_cut_into_pieces_makes_no_difference(graph: DFGraph, seed: int, cut: int) -> None:
    needed = np.flatnonzero(needed_ops(graph)).tolist()
    budget = int(0.8 * (liveness(graph, needed).peak - graph.base_size))
    whole, parts = (_loaded(graph, needed, seed=seed) for _ in range(2))
    for state in (whole, parts):
        if search(state, NOTHING, budget, steps=100, samples=3) < 0:
            return
        state.totals[TEMPERATURE] = 1.0
    search(whole, NOTHING, budget, rounds=30, cooling=0.9, samples=3)
    for rounds in (cut, 30 - cut):
        search(parts, NOTHING, budget, rounds=rounds, cooling=0.9, samples=3)
    assert whole.best.tolist() == parts.best.tolist()
    assert whole.random.tolist() == parts.random.tolist()


def test_an_empty_sequence_is_a_sequence() -> None:
    """Nothing needs to run where no output is asked for."""
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], outputs=[])
    state = state_of(graph, fixed_order=False, seed=0)
    assert search(state, NOTHING, ANY_BUDGET, steps=1, rounds=5) == 0

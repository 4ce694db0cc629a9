"""Chen's rules: costs by hand on chains, cuts only between residual blocks, the cheapest of each family."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Problem, floor, keep_all_peak, simulate
from checkmate.heuristics import ChenGreedy, ChenSqrtN
from checkmate.heuristics.chen import Candidates
from checkmate.problem.solution import Solution
from checkmate.testing.strategies import graphs

BOTH: list[Candidates] = ["linearized", "articulation"]


def training(forward: list[list[int]], size: list[int]) -> DFGraph:
    """A backward op for each forward op, last first: it reads the inputs of that op and a gradient."""
    n = len(forward)
    backward = [[*forward[n - 1 - i], n + i - 1] for i in range(n)]
    return DFGraph.from_nodes(
        cost=[1] * 2 * n, size=[*size, *[1] * n], deps=forward + backward, backward=[False] * n + [True] * n
    )


def chain(n: int, size: list[int] | None = None) -> DFGraph:
    """n forward ops in a row; backward op i reads forward output n − 2 − i."""
    return training([[v - 1] if v else [] for v in range(n)], size or [1] * n)


def residual(blocks: int) -> DFGraph:
    """A stem, then blocks of three ops: first(x), second(first), add(x, second)."""
    forward: list[list[int]] = [[]]
    for _ in range(blocks):
        x = len(forward) - 1
        forward += [[x], [x + 1], [x, x + 2]]
    return training(forward, [1] * len(forward))


def twice(solution: Solution) -> set[int]:
    """The ops that run twice; no op runs more often."""
    assert solution.timeline is not None
    assert solution.timeline.runs.max() <= 2
    return set(np.flatnonzero(solution.timeline.runs == 2).tolist())


def answer(solver: ChenSqrtN | ChenGreedy, graph: DFGraph, budget: int | None = None) -> Solution:
    """The answer of the solver within a budget; default: any budget."""
    return solver.solve(Problem(graph=graph, budget=budget or 10**9))


@pytest.mark.parametrize("candidates", BOTH)
@pytest.mark.parametrize("n", [16, 64, 144])
def test_all_but_the_last_of_root_n_segments_run_again(n: int, candidates: Candidates) -> None:
    """√n kept outputs, segments of √n; each of the √n − 1 earlier segments has √n − 1 ops to run again."""
    root = math.isqrt(n)
    by_count = ChenSqrtN(candidates=candidates, segment=root)
    by_bytes = ChenGreedy(candidates=candidates, threshold=root - 1)
    for solution in (answer(by_count, chain(n)), answer(by_bytes, chain(n))):
        assert solution.peak is not None
        assert solution.peak <= 2 * root
        assert solution.cost == 2 * n + (root - 1) ** 2
        assert twice(solution) == {v for v in range(n - root) if (v + 1) % root}


def test_a_last_segment_that_does_not_fit_is_dropped_as_published() -> None:
    """The first backward op recomputes op 0's 5 bytes; with op 1's 2 still held, that is 1 byte too many."""
    graph = DFGraph.from_nodes(
        cost=[1] * 5,
        size=[5, 2, 1, 1, 1],
        deps=[[], [0], [1], [0, 2], [1, 3]],
        backward=[False] * 3 + [True] * 2,
    )
    kept = answer(ChenSqrtN(segment=3), graph, 9)
    assert (kept.cost, kept.peak) == (5, 9)
    forgotten = answer(ChenSqrtN(segment=3), graph, 8)
    assert (forgotten.cost, forgotten.peak) == (7, 8)


def test_greedy_cuts_where_the_bytes_exceed_the_threshold() -> None:
    """Sums of 9 after op 1, 10 after op 4 and 9 after op 7: cuts there; the rest is the last segment."""
    graph = chain(10, [8, 1, 1, 1, 8, 7, 1, 1, 2, 2])
    assert twice(answer(ChenGreedy(threshold=8), graph)) == {0, 2, 3, 5, 6}


def test_greedy_on_articulation_points_waits_for_the_end_of_the_block() -> None:
    """With a threshold of 1, the sums exceed it inside of blocks; only linearized cuts there."""
    graph = residual(4)
    assert twice(answer(ChenGreedy(threshold=1), graph)) == {0, 2, 4, 6, 8, 10}
    spared = answer(ChenGreedy(candidates="articulation", threshold=1), graph)
    assert twice(spared) == {1, 2, 4, 5, 7, 8, 0}


def test_without_a_sweep_the_next_length_is_tried_where_blocks_divide_the_root_of_n() -> None:
    """66 blocks of 3 ops, √199 ≈ 15: each cut then lies at the same op of a block, inside the skip."""
    graph = residual(66)
    budget = keep_all_peak(graph) * 6 // 10
    root = answer(ChenSqrtN(segment=15), graph, budget)
    assert root.cost > 4 * graph.ideal_cost
    found = answer(ChenSqrtN(sweep=False), graph, budget)
    assert found.cost == answer(ChenSqrtN(segment=16), graph, budget).cost
    assert found.cost < 1.5 * graph.ideal_cost


@pytest.mark.parametrize("segment", [1, 2, 3])
@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_on_articulation_points_no_cut_lies_within_a_residual_block(blocks: int, segment: int) -> None:
    """The inner ops of blocks before the last cut run again; only stems and ends of blocks are kept."""
    solution = answer(ChenSqrtN(candidates="articulation", segment=segment), residual(blocks))
    ends = range(0, 3 * blocks + 1, 3)
    cuts = [v for v in ends[segment - 1 :: segment] if v < 3 * blocks]
    last = cuts[-1] if cuts else 0
    assert twice(solution) == set(range(last)).difference(cuts)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.integers(1, 9),
    st.integers(0, 40),
    st.floats(0, 1),
)
def test_on_a_chain_both_sets_of_candidates_are_the_same(
    sizes: list[int], segment: int, threshold: int, share: float
) -> None:
    graph = chain(len(sizes), sizes)
    budget = max(1, round(floor(graph).size * (1 - share) + keep_all_peak(graph) * share))
    for first, second in (
        [ChenSqrtN(candidates=c) for c in BOTH],
        [ChenSqrtN(candidates=c, segment=segment) for c in BOTH],
        [ChenGreedy(candidates=c) for c in BOTH],
        [ChenGreedy(candidates=c, threshold=threshold) for c in BOTH],
    ):
        assert answer(first, graph, budget).schedule == answer(second, graph, budget).schedule


@pytest.mark.parametrize("candidates", BOTH)
@given(graph=graphs(max_ops=12), share=st.floats(0, 1))
def test_the_sweep_finds_the_cheapest_segment_length(
    candidates: Candidates, graph: DFGraph, share: float
) -> None:
    lowest = floor(graph).size
    budget = max(1, lowest + round(share * (keep_all_peak(graph) - lowest)))
    each = [answer(ChenSqrtN(candidates=candidates, segment=k), graph, budget).cost for k in range(1, 13)]
    assert answer(ChenSqrtN(candidates=candidates), graph, budget).cost == min(each)


@pytest.mark.parametrize("candidates", BOTH)
def test_the_sweep_finds_the_cheapest_threshold(candidates: Candidates) -> None:
    for graph in (chain(12), residual(3)):
        costs = set()
        for budget in range(floor(graph).size, keep_all_peak(graph) + 1):
            each = [
                answer(ChenGreedy(candidates=candidates, threshold=b), graph, budget).cost for b in range(14)
            ]
            costs.add(min(each))
            assert answer(ChenGreedy(candidates=candidates), graph, budget).cost == min(each)
        assert len(costs) > 2


@pytest.mark.parametrize("rule", [ChenSqrtN, ChenGreedy])
def test_a_larger_budget_never_costs_more(rule: type[ChenSqrtN | ChenGreedy]) -> None:
    graph = chain(36)
    costs = [answer(rule(), graph, budget).cost for budget in range(13, keep_all_peak(graph) + 1)]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) >= 4
    assert costs[-1] == graph.ideal_cost


def test_tensors_that_skip_edges_recompute_early_are_dropped_again() -> None:
    """Segments {0, 1}, {2, 3}, {4}: recomputing op 2 needs op 0, whose own turn comes one op later.

    Keeping it until then costs a byte; if that exceeds the budget, op 0 runs a third time.
    """
    graph = training([[], [0], [1, 0], [2], [3]], [1] * 5)
    solution = answer(ChenSqrtN(segment=2), graph, 5)
    assert (solution.cost, solution.peak, twice(solution)) == (12, 5, {0, 2})
    tight = answer(ChenSqrtN(segment=2), graph, 4)
    assert (tight.cost, tight.peak) == (13, 4)
    assert tight.timeline is not None
    assert tight.timeline.runs[0] == 3


def test_when_the_time_is_up_the_root_of_n_has_been_tried() -> None:
    graph = chain(16)
    solution = ChenSqrtN().solve(Problem(graph=graph, budget=16, time_limit=1e-9))
    assert solution.cost == ChenSqrtN(segment=4).solve(Problem(graph=graph, budget=16)).cost
    assert solution.schedule is not None
    assert simulate(graph, solution.schedule).peak <= 8


@pytest.mark.parametrize("segment", [0, -1])
def test_a_segment_has_at_least_one_op(segment: int) -> None:
    with pytest.raises(ValueError, match="≥ 1"):
        ChenSqrtN(segment=segment)


def test_a_threshold_is_not_negative() -> None:
    with pytest.raises(ValueError, match="≥ 0"):
        ChenGreedy(threshold=-1)

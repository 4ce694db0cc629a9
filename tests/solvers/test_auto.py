"""Golden cases with known optima, and the report of ``auto`` beside its schedule."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import (
    DFGraph,
    Op,
    Problem,
    Progress,
    Status,
    Tensor,
    floor,
    generators,
    keep_all_peak,
    minimum_budget,
    read_graph,
    simulate,
    solve,
    sweep,
)
from checkmate.generators import chain
from checkmate.plugins import SOLVERS
from checkmate.testing.strategies import graphs
from checkmate_solvers.auto import STEPS, Auto
from checkmate_solvers.local_search import LocalSearch
from checkmate_solvers.moments.cut_milp import CutMilp, solve_cuts
from checkmate_solvers.moments.min_cut import MinCut, min_cut
from checkmate_solvers.moments.moment import crowded_ops, moment_at
from checkmate_solvers.search import Incumbent

_GRAPHS = os.environ.get("CHECKMATE_GRAPHS")


@pytest.mark.parametrize(
    ("layers", "budget", "optimum"),
    [(8, 4, 26), (8, 5, 22), (8, 6, 21), (16, 9, 42), (16, 12, 39), (32, 17, 82), (64, 33, 162)],
)
def test_unit_chains(layers: int, budget: int, optimum: int) -> None:
    solution = Auto().solve(Problem(graph=chain(layers), budget=budget, fixed_order=True))
    assert solution.cost == optimum
    assert solution.bound <= optimum


@pytest.mark.parametrize(("layers", "budget"), [(31, 6), (32, 8), (100, 5)])
def test_chains_are_proved_optimal_at_deep_budgets(layers: int, budget: int) -> None:
    solution = Auto().solve(Problem(graph=chain(layers), budget=budget, fixed_order=True))
    assert solution.status is Status.OPTIMAL
    assert solution.origin["bound"] == "binomial checkpointing"


@pytest.mark.parametrize("layers", [16, 64])
def test_half_the_memory_of_a_chain_is_proved_optimal(layers: int) -> None:
    graph = chain(layers)
    for fixed_order in (True, False):
        problem = Problem(graph=graph, budget=keep_all_peak(graph) // 2, fixed_order=fixed_order)
        assert Auto().solve(problem).status is Status.OPTIMAL


def test_room_for_everything_costs_nothing_and_less_than_the_floor_is_infeasible() -> None:
    graph = chain(8)
    roomy = Auto().solve(Problem(graph=graph, budget=keep_all_peak(graph)))
    assert (roomy.status, roomy.overhead, roomy.origin["schedule"]) == (Status.OPTIMAL, 0.0, "keep-all")
    tight = Auto().solve(Problem(graph=graph, budget=floor(graph).size - 1))
    assert (tight.status, tight.schedule) == (Status.INFEASIBLE, None)


def test_a_moment_can_prove_what_the_floor_does_not() -> None:
    """In this order two masks that can't come back are both there when the first is used: 9 bytes."""
    graph = DFGraph(
        ops=(
            Op(name="mask a", inputs=(), outputs=(0,), cost=1, recomputable=False),
            Op(name="mask b", inputs=(), outputs=(1,), cost=1, recomputable=False),
            Op(name="use a", inputs=(0,), outputs=(2,), cost=1),
            Op(name="use b", inputs=(1,), outputs=(3,), cost=1),
            Op(name="join", inputs=(2, 3), outputs=(4,), cost=1),
            Op(name="end", inputs=(4, 2), outputs=(5,), cost=1),
        ),
        tensors=tuple(Tensor(name=str(t), size=size) for t, size in enumerate([4, 4, 1, 1, 1, 1])),
        outputs=(5,),
    )
    assert floor(graph).size < 9
    assert Auto().solve(Problem(graph=graph, budget=8, fixed_order=True)).status is Status.INFEASIBLE


def test_a_needless_op_proves_nothing(oracle) -> None:
    """Only a needless op is too large for the budget here; a schedule does without it."""
    graph = DFGraph(
        ops=(
            Op(name="a", inputs=(), outputs=(0, 1), cost=1),
            Op(name="b", inputs=(), outputs=(2, 3), cost=1),
            Op(name="once", inputs=(), outputs=(4,), cost=1, recomputable=False),
            Op(name="needless", inputs=(3,), outputs=(), cost=1, workspace=2),
        ),
        tensors=tuple(Tensor(name=str(t), size=size) for t, size in enumerate([1, 1, 0, 3, 2])),
        outputs=(0, 2, 4),
    )
    problem = Problem(graph=graph, budget=3)
    assert oracle.optimum(problem) == 3
    for solver in (Auto(), MinCut(), CutMilp()):
        assert solver.solve(problem).bound == 3
    with pytest.raises(ValueError, match="needless"):
        moment_at(graph, 3, 3, fixed_order=False)


@pytest.mark.parametrize("outside", [1.0, 1e4, 1e10])
@pytest.mark.parametrize("layers", [3, 4, 5])
def test_the_cost_of_ops_that_never_repeat_does_not_blur_the_bound(
    oracle, layers: int, outside: float
) -> None:
    alone = chain(layers)
    metric = Op(name="metric", inputs=(), outputs=(alone.n_tensors,), cost=outside)
    graph = replace(alone, ops=(*alone.ops, metric), tensors=(*alone.tensors, Tensor(name="metric", size=0)))
    for budget in range(floor(graph).size, layers + 2):
        problem = Problem(graph=graph, budget=budget, fixed_order=True)
        bounds = [CutMilp().solve(replace(problem, graph=g)).bound for g in (alone, graph)]
        assert bounds[0] == bounds[1] <= oracle.optimum(problem)


def test_tensors_larger_than_the_room_do_not_upset_the_milp(oracle) -> None:
    """Ratios of sizes beyond what HiGHS takes as a coefficient."""
    graph = DFGraph.from_nodes(
        cost=[1] * 5, size=[2**57, 1, 1, 2**57, 1], deps=[[], [0], [1], [0, 1], [2, 3]], outputs=[4]
    )
    graph = replace(
        graph, ops=(*graph.ops[:2], replace(graph.ops[2], workspace=2**58 + 2**57), *graph.ops[3:])
    )
    for budget in range(floor(graph).size, floor(graph).size + 3):
        for fixed_order in (True, False):
            problem = Problem(graph=graph, budget=budget, fixed_order=fixed_order)
            assert CutMilp().solve(problem).bound <= oracle.optimum(problem)


@pytest.mark.parametrize("size", [2**20, 2**30, 2**33 + 5, 2**50 + 1])
@pytest.mark.parametrize("more", [1, 2, 7])
def test_rounded_sizes_prove_nothing(oracle, size: int, more: int) -> None:
    """The tensors that must stay fit to the byte: the budget has room for nothing else."""
    graph = DFGraph(
        ops=(
            Op(name="a", inputs=(), outputs=(0,), cost=1, recomputable=False),
            Op(name="b", inputs=(0,), outputs=(1,), cost=1),
            Op(name="c", inputs=(), outputs=(4,), cost=1, recomputable=False),
            Op(name="large", inputs=(), outputs=(2,), cost=1, workspace=size + more),
            Op(name="end", inputs=(1, 2), outputs=(3,), cost=1),
        ),
        tensors=tuple(
            Tensor(name=str(t), size=s) for t, s in enumerate([size, size + more, 0, 0, size // 3])
        ),
        outputs=(3, 4),
    )
    budget = size + size + more + size // 3
    assert min_cut(moment_at(graph, budget, 3, fixed_order=True)).recompute <= 1
    assert min_cut(moment_at(graph, budget - size, 3, fixed_order=True)).recompute == math.inf
    problem = Problem(graph=graph, budget=budget, fixed_order=True)
    assert oracle.optimum(problem) == 6
    for solver in (Auto(), MinCut()):
        solution = solver.solve(problem)
        assert (solution.cost, solution.bound <= 6) == (6, True)


@given(graph=graphs())
def test_the_least_known_budget_is_enough(graph: DFGraph) -> None:
    for fixed_order in (False, True):
        budget = max(1, minimum_budget(graph, fixed_order=fixed_order).peak or 0)
        assert Auto().solve(Problem(graph=graph, budget=budget, fixed_order=fixed_order)).schedule is not None


def test_a_schedule_that_only_chens_rule_finds() -> None:
    """Eviction frees too late here, whatever its weights; forgetting all at the first backward op fits."""
    reads = [(1,), (3,), (5,), (2, 6), (2,)]
    makes: list[tuple[int, ...]] = [(2, 3), (4, 5), (6,), (7,), ()]
    graph = DFGraph(
        ops=tuple(
            Op(name=str(i), inputs=r, outputs=m, cost=1, workspace=w, backward=i > 2)
            for i, (r, m, w) in enumerate(zip(reads, makes, [6, 4, 2, 0, 0], strict=True))
        ),
        tensors=tuple(Tensor(name=str(t), size=size) for t, size in enumerate([2, 4, 6, 2, 6, 1, 5, 3])),
        inputs=(0, 1),
        outputs=(0, 7),
    )
    assert Auto().solve(Problem(graph=graph, budget=24)).schedule is not None


def test_the_relaxations_are_ordered() -> None:
    """Min-cut ≤ cut MILP at one moment ≤ cut MILP at two; order-free ≤ fixed order."""
    graph = chain(12)
    for budget in range(5, keep_all_peak(graph)):
        at = crowded_ops(Problem(graph=graph, budget=budget), 1)[0]
        one, free = (moment_at(graph, budget, at, fixed_order=fixed) for fixed in (True, False))
        two = moment_at(graph, budget, at + 2, fixed_order=True)
        bounds = [
            min_cut(free).recompute,
            min_cut(one).recompute,
            *(solve_cuts(cuts, time_limit=10, nodes=100).recompute for cuts in ([one], [one, two])),
        ]
        assert all(low <= high + 1e-4 for low, high in itertools.pairwise(bounds))
        assert bounds[1] > 0


def test_progress_only_ever_improves_and_names_the_step() -> None:
    reports: list[Progress] = []
    problem = Problem(graph=chain(12), budget=6, fixed_order=True, on_progress=reports.append)
    solution = Auto().solve(problem)
    assert [r.incumbent for r in reports if r.incumbent is not None][-1] == solution.cost
    assert max(r.bound for r in reports) == solution.bound
    for earlier, later in itertools.pairwise(reports):
        assert later.bound >= earlier.bound
        assert earlier.incumbent is None or (later.incumbent or 0) <= earlier.incumbent
        assert later.seconds >= earlier.seconds
    assert solution.origin.keys() == {"schedule", "bound"}


@pytest.mark.parametrize("fixed_order", [True, False])
@pytest.mark.parametrize(
    ("graph", "share"), [(chain(12), 0.5), (generators.residual(8), 0.4)], ids=["chain", "residual"]
)
def test_the_same_problem_gets_the_same_answer(graph: DFGraph, share: float, fixed_order: bool) -> None:
    """Work is counted, not timed; here no time limit cuts in, not even that of a MILP."""
    patience = Auto(local=LocalSearch(patience=3), cut_milp=CutMilp(moments=1))
    budget = int(share * keep_all_peak(graph))
    first, second = (
        patience.solve(Problem(graph=graph, budget=budget, fixed_order=fixed_order, time_limit=3600, seed=5))
        for _ in range(2)
    )
    assert first.schedule is not None
    assert (first.schedule, first.bound, first.origin) == (second.schedule, second.bound, second.origin)


def test_an_interrupt_is_answered_with_the_best_so_far() -> None:
    costs: list[float] = []

    def interrupt(report: Progress) -> None:
        if report.incumbent is not None:
            costs.append(report.incumbent)
        if len(set(costs)) == 2:
            raise KeyboardInterrupt

    graph = generators.residual(8)
    problem = Problem(graph=graph, budget=int(0.4 * keep_all_peak(graph)), on_progress=interrupt)
    solution = Auto().solve(problem)
    assert solution.interrupted
    assert (solution.cost, len(set(costs))) == (costs[-1], 2)


def test_without_time_there_still_is_an_answer() -> None:
    graph = generators.residual(8)
    problem = Problem(graph=graph, budget=int(0.4 * keep_all_peak(graph)), time_limit=1e-6)
    solution = Auto().solve(problem)
    assert solution.status in (Status.FEASIBLE, Status.UNKNOWN)


def test_a_sweep_over_16_budgets_keeps_each_and_costs_fall_as_budgets_rise() -> None:
    graph = generators.transformer(1)
    low, high = floor(graph).size, keep_all_peak(graph)
    budgets = [low + (high - low) * k // 15 for k in range(16)]
    quick = Auto(local=LocalSearch(rounds=200, patience=1), cut_milp=CutMilp(moments=1))
    frontier = sweep(graph, budgets, solvers=(quick,))
    assert len(frontier.answers) == 16
    for answer in frontier.answers:
        assert answer.schedule is None or simulate(graph, answer.schedule).peak <= answer.problem.budget
    costs = [point.cost for point in frontier.points]
    assert costs == sorted(costs, reverse=True)
    assert frontier.points[-1].cost == graph.ideal_cost


def test_a_known_schedule_that_is_cheaper_is_where_the_search_goes_on() -> None:
    graph = generators.residual(12)
    problem = Problem(graph=graph, budget=int(0.3 * keep_all_peak(graph)), time_limit=60)
    hasty = Auto(without=("min-cut", "cut-milp", "local-search"), local=LocalSearch(rounds=20))
    patient = Auto(without=("min-cut", "cut-milp"), local=LocalSearch(patience=2))
    plain, good = hasty.solve(problem), patient.solve(problem)
    assert good.cost < plain.cost
    again = hasty.solve(replace(problem, start=good.schedule))
    assert again.cost <= good.cost
    dear = replace(problem, start=plain.schedule)
    assert patient.solve(dear).cost < plain.cost


def test_a_known_schedule_that_is_slightly_over_the_budget_is_repaired() -> None:
    graph = generators.residual(64)
    roomy = Problem(graph=graph, budget=int(0.5 * keep_all_peak(graph)), time_limit=60)
    known = Auto(without=("cut-milp", "local-search")).solve(roomy)
    tight = replace(roomy, budget=(known.peak or 0) - 1, start=known.schedule)
    repaired = Auto(without=STEPS).solve(tight)
    assert repaired.origin["schedule"] == "known before"
    assert repaired.peak is not None
    assert repaired.peak <= tight.budget
    assert Auto(without=STEPS).solve(replace(tight, start=None)).schedule is None


_FOUND_BY = {
    "segments": {"chen-sqrt-n"},
    "chains": {"binomial checkpointing", "revolve", "chain-dp"},
    "tightening": {"tightening"},
    "first-cut": {"min-cut"},
    "first-cycle": {"local search"},
    "min-cut": {"min-cut"},
    "cut-milp": {"cut-milp"},
    "local-search": {"local search"},
    "last-resort": {"evict-belady", "chen-sqrt-n, one length"},
}


@pytest.mark.parametrize(("step", "threads"), [*((step, 1) for step in STEPS), (None, 1), (None, 2)])
def test_a_step_that_is_left_out_finds_nothing(step: str | None, threads: int) -> None:
    """One step alone; some steps only improve the schedules of others, and one works on chains only."""
    graph = chain(40, cost="random") if step == "chains" else generators.residual(8)
    seen = []
    problem = Problem(
        graph=graph,
        budget=keep_all_peak(graph) // 2,
        threads=threads,
        on_progress=lambda report: seen.append(re.split(" at | with ", report.step)[0]),
    )
    brief = Auto(cut_milp=CutMilp(moments=1), local=LocalSearch(rounds=200, patience=1))
    solution = replace(brief, without=tuple(other for other in STEPS if other != step)).solve(problem)
    assert {*seen} <= _FOUND_BY.get(step or "", set())
    assert (solution.schedule is not None) == bool(seen)
    assert (step in _FOUND_BY) == bool(seen)


@given(graph=graphs(max_ops=6), without=st.sets(st.sampled_from(STEPS)))
def test_no_choice_of_steps_leads_to_a_wrong_answer(oracle, graph: DFGraph, without: set[str]) -> None:
    problem = Problem(graph=graph, budget=max(1, (floor(graph).size + keep_all_peak(graph)) // 2))
    patience = Auto(local=LocalSearch(patience=2), without=tuple(without))
    solution = patience.solve(problem)
    assert solution.bound <= oracle.optimum(problem) * (1 + 1e-9)
    assert solution.schedule is None or solution.cost >= oracle.optimum(problem) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("moments", "share", "solved"),
    [(4, 0.25, CutMilp(moments=8, nodes=0)), (0, 0.25, CutMilp(moments=0)), (4, 1.0, CutMilp())],
    ids=["alone", "beside a second process", "in the second process"],
)
def test_one_process_alone_solves_relaxations_where_the_gap_is_wide(
    monkeypatch, moments: int, share: float, solved: CutMilp
) -> None:
    asked: list[CutMilp] = []
    monkeypatch.setattr(CutMilp, "improve", lambda self, best, bounds: asked.append(self))
    graph = generators.transformer(20)
    best = Incumbent(Problem(graph=graph, budget=keep_all_peak(graph) // 2))
    best.cost = 1.1 * best.bound
    Auto(cut_milp=CutMilp(moments=moments), without=("min-cut",)).cut_moments(best, share)
    assert asked == [solved]


def test_an_unknown_step_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"the steps are exhaustive, segments, .*, last-resort"):
        Auto(without=("cuts", "chains"))


@pytest.mark.parametrize(("name", "kind"), [("auto", Auto), ("min-cut", MinCut), ("cut-milp", CutMilp)])
def test_the_plugin_offers_each_by_name(name: str, kind: type) -> None:
    assert isinstance(SOLVERS.load(name), kind)
    assert {spec.name: spec.guarantee for spec in SOLVERS.specs()}[name] == "bound"


def test_solve_uses_auto() -> None:
    assert solve(chain(8), budget=5).solver == "auto"


@pytest.mark.skipif(_GRAPHS is None, reason="set CHECKMATE_GRAPHS to a folder of problem graphs")
def test_known_results() -> None:
    folder = Path(_GRAPHS or "")
    known = json.loads((folder.parent / "best_known.json").read_text())
    for key, facts in known.items():
        name, share = key.split(":")
        if float(share) < 0.4 or name.startswith("rl"):
            continue
        graph = read_graph(folder / f"{name}.json")
        budget = int(float(share) * keep_all_peak(graph))
        solution = Auto().solve(Problem(graph=graph, budget=budget, fixed_order=True))
        assert solution.cost / graph.ideal_cost <= facts["best"] * 1.005, key

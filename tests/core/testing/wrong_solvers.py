"""Wrong solvers for the conformance kit: each is a right one with one fault."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from checkmate import DFGraph, Problem, Progress, Schedule, Solution, Status, simulate
from checkmate.heuristics import FirstFit, KeepAll
from checkmate.testing import cheapest_schedule, optimum

_TINY, _LARGE = 8, 100


@dataclass(frozen=True)
class Right:
    """Exact by the oracle on tiny graphs; keep-all or unknown on larger ones, which is monotone."""

    def solve(self, problem: Problem) -> Solution:
        if problem.graph.n_ops > _TINY:
            return KeepAll().solve(problem)
        schedule = cheapest_schedule(problem)
        if schedule is None:
            return Solution.infeasible(problem)
        return Solution.found(problem, schedule, bound=optimum(problem))


Spoil = Callable[[Problem, Solution], Any]


@dataclass(frozen=True)
class Wrong:
    """The right answer with one fault."""

    spoil: Spoil

    def solve(self, problem: Problem) -> Solution:
        return self.spoil(problem, Right().solve(problem))


def smuggled(problem: Problem, answer: Solution, schedule: Schedule, **lies: Any) -> Solution:
    """An unjudged answer: the timeline of ``answer`` with another schedule."""
    timeline = replace(answer.timeline, schedule=schedule, **lies)
    return replace(answer, timeline=timeline)


def weak(problem: Problem) -> Solution:
    """Some schedule, with the trivial bound."""
    return FirstFit().solve(problem)


def raises(problem: Problem, answer: Solution) -> Any:
    if problem.graph.n_ops == 4:
        raise KeyError("four")
    return answer


def exits(problem: Problem, answer: Solution) -> Any:
    if problem.graph.n_ops == 4:
        raise SystemExit(3)
    return answer


def another_type(problem: Problem, answer: Solution) -> Any:
    return answer.schedule if problem.graph.n_ops == 4 else answer


def another_graph(problem: Problem, answer: Solution) -> Any:
    other = replace(problem, graph=DFGraph.from_nodes(cost=[1], size=[0], deps=[[]]))
    return replace(answer, problem=other) if problem.graph.n_ops == 4 else answer


def found_without_schedule(problem: Problem, answer: Solution) -> Any:
    return replace(answer, timeline=None) if problem.graph.n_ops == 4 and answer.timeline else answer


def invalid(problem: Problem, answer: Solution) -> Any:
    if answer.schedule is None or len(answer.schedule) < 3:
        return answer
    return smuggled(problem, answer, Schedule(answer.schedule.codes[1:]))


def over_budget(problem: Problem, answer: Solution) -> Any:
    """Keeps everything, with true claims."""
    graph = problem.graph
    timeline = simulate(graph, Schedule.from_sequence(graph, range(graph.n_ops)))
    if graph.n_ops > _TINY or timeline.peak <= problem.budget:
        return answer
    return Solution(problem=problem, status=Status.FEASIBLE, timeline=timeline, bound=0.0)


def out_of_order(problem: Problem, answer: Solution) -> Any:
    """The best of any order."""
    free = replace(problem, fixed_order=False)
    if not problem.fixed_order or problem.graph.n_ops > _TINY or optimum(free) >= optimum(problem):
        return answer
    schedule = cheapest_schedule(free)
    assert schedule is not None
    return Solution.found(problem, schedule)


def misreports_cost(problem: Problem, answer: Solution) -> Any:
    return (answer.timeline and smuggled(problem, answer, answer.schedule, cost=answer.cost / 2)) or answer


def misreports_peak(problem: Problem, answer: Solution) -> Any:
    return (answer.timeline and smuggled(problem, answer, answer.schedule, peak=0)) or answer


def lies_optimal(problem: Problem, answer: Solution) -> Any:
    found = weak(problem)
    if found.timeline is None or found.cost <= answer.cost or problem.graph.n_ops > _TINY:
        return answer
    return replace(found, status=Status.OPTIMAL)


def lies_infeasible(problem: Problem, answer: Solution) -> Any:
    found = weak(problem)
    if found.status is Status.UNKNOWN or found.overhead == 0 or problem.graph.n_ops > _TINY:
        return answer
    return Solution.infeasible(problem)


def wrong_bound(problem: Problem, answer: Solution) -> Any:
    if not math.isfinite(answer.cost) or problem.graph.n_ops > _TINY:
        return answer
    return replace(answer, status=Status.FEASIBLE, bound=answer.cost * 1.001 + 1e-300)


def no_number_as_bound(problem: Problem, answer: Solution) -> Any:
    return replace(wrong_bound(problem, answer), bound=math.nan) if problem.graph.n_ops <= _TINY else answer


def bound_a_little_high(problem: Problem, answer: Solution) -> Any:
    """By 0.01 %, on tiny graphs whose ops have several outputs."""
    several = any(len(op.outputs) > 1 for op in problem.graph.ops)
    if not several or not math.isfinite(answer.cost) or problem.graph.n_ops > _TINY:
        return answer
    return replace(answer, status=Status.FEASIBLE, bound=answer.cost * 1.0001 + 1e-300)


def _bound_too_high(problem: Problem, answer: Solution, here: bool) -> Solution:
    found = weak(problem)
    if found.timeline is None or not here or problem.graph.n_ops > _LARGE:
        return answer
    return replace(found, bound=2 * found.cost + 1)


def with_another_seed(problem: Problem, answer: Solution) -> Any:
    return _bound_too_high(problem, answer, problem.seed != 0)


def with_two_threads(problem: Problem, answer: Solution) -> Any:
    return _bound_too_high(problem, answer, problem.threads > 1)


def above_twenty_ops(problem: Problem, answer: Solution) -> Any:
    return _bound_too_high(problem, answer, problem.graph.n_ops > 20)


def infeasible_from_twelve_ops(problem: Problem, answer: Solution) -> Any:
    small = problem.graph.n_ops < 12 or problem.graph.n_ops > _LARGE
    return answer if small or problem.budget % 3 else Solution.infeasible(problem)


_Structure = tuple[object, ...]


_first_schedules: dict[_Structure, Schedule] = {}


def remembers_structures(problem: Problem, answer: Solution) -> Any:
    """The schedule of the first graph with the same edges, called optimal if it fits."""
    graph = problem.graph
    if answer.schedule is None or graph.n_ops > _TINY:
        return answer
    structure = tuple((op.inputs, op.outputs, op.recomputable) for op in graph.ops), graph.outputs
    known = _first_schedules.setdefault(structure, answer.schedule)
    timeline = simulate(graph, known)
    if timeline.peak > problem.budget or (problem.fixed_order and not known.keeps_base_order):
        return answer
    return Solution(problem=problem, status=Status.OPTIMAL, timeline=timeline, bound=timeline.cost)


def nearly_optimal(problem: Problem, answer: Solution) -> Any:
    """Calls a schedule optimal that is dearer by at most a part in a thousand."""
    found = weak(problem)
    if found.timeline is None or not answer.cost < found.cost <= answer.cost * 1.001:
        return answer
    return replace(found, status=Status.OPTIMAL)


def three_times_the_limit(problem: Problem, answer: Solution) -> Any:
    if problem.graph.n_ops > _LARGE:
        time.sleep(3 * problem.time_limit)
    return answer


def wrong_only_on_long_chains(problem: Problem, answer: Solution) -> Any:
    """True claims, except about the graph that shows whether a solver keeps its time limit."""
    if problem.graph.n_ops <= _LARGE:
        return answer
    graph = problem.graph
    timeline = simulate(graph, Schedule.from_sequence(graph, range(graph.n_ops)))
    return Solution(problem=problem, status=Status.FEASIBLE, timeline=timeline, bound=0.0)


def false_progress(problem: Problem, answer: Solution) -> Any:
    if problem.on_progress is not None and math.isfinite(answer.cost):
        problem.on_progress(Progress(incumbent=answer.cost, bound=answer.cost + 1, seconds=0.0, step="lie"))
    return answer


def false_incumbent(problem: Problem, answer: Solution) -> Any:
    if problem.on_progress is not None and answer.cost > 0:
        problem.on_progress(Progress(incumbent=0.0, bound=0.0, seconds=0.0, step="lie"))
    return answer


def gives_up(problem: Problem, answer: Solution) -> Any:
    return Solution.unknown(problem) if answer.overhead > 0 and problem.graph.n_ops <= _TINY else answer


def proofs_shrink(problem: Problem, answer: Solution) -> Any:
    """On graphs too large for the oracle, an even budget is claimed to be infeasible."""
    small = problem.graph.n_ops <= _TINY or problem.graph.n_ops > _LARGE
    if small or problem.budget % 2:
        return weak(problem)
    return Solution.infeasible(problem)


def not_monotone(problem: Problem, answer: Solution) -> Any:
    small = problem.graph.n_ops <= _TINY or problem.graph.n_ops > _LARGE
    return answer if small or problem.budget % 2 == 0 else weak(problem)


def believes_in_the_order(problem: Problem, answer: Solution) -> Any:
    """On less tiny graphs: infeasible if the first op costs more than the last."""
    ops = problem.graph.ops
    if not _TINY < len(ops) < _LARGE or ops[0].cost <= ops[-1].cost:
        return weak(problem)
    return Solution.infeasible(problem)


def reads_names(problem: Problem, answer: Solution) -> Any:
    if any("loss" in op.name for op in problem.graph.ops):
        return Solution.unknown(problem)
    return answer


def chokes_on_names(problem: Problem, answer: Solution) -> Any:
    "".join(op.name for op in problem.graph.ops).encode("ascii")
    return answer


def rounds_to_mebibytes(problem: Problem, answer: Solution) -> Any:
    """Wrong only if all bytes are multiples of 2¹⁰, that is, if they were scaled."""
    mega = 2**20
    if problem.graph.n_ops > _TINY or problem.budget % 2**10 or problem.budget >= 2**29:
        return answer
    held = sum(-(-t.size // mega) for t in problem.graph.tensors)
    return answer if held <= problem.budget // mega else Solution.unknown(problem)


class _Counter:
    asked = 0


def whimsical(problem: Problem, answer: Solution) -> Any:
    """Every other time the bound is a little lower."""
    _Counter.asked += 1
    if answer.schedule is None or not len(answer.schedule) or _Counter.asked % 2:
        return answer
    return replace(answer, bound=answer.bound * (1 - 1e-12))


def never_ends(problem: Problem, answer: Solution) -> Any:
    if problem.graph.n_ops > _LARGE:
        time.sleep(60)
    return answer


def scribbles(problem: Problem, answer: Solution) -> Any:
    vars(problem.graph)["costs"] = problem.graph.costs.copy()
    return answer


def scribbles_where_there_is_room(problem: Problem, answer: Solution) -> Any:
    return scribbles(problem, answer) if problem.graph.n_ops > _TINY else answer


def overwrites(problem: Problem, answer: Solution) -> Any:
    if answer.overhead > 0:
        object.__setattr__(answer.problem, "seed", 1)
    return answer


def holds_a_lambda(problem: Problem, answer: Solution) -> Any:
    return replace(answer, origin=_Unpicklable())


class _Unpicklable(dict[str, str]):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


def dislikes_emptiness(problem: Problem, answer: Solution) -> Any:
    return answer if problem.graph.n_ops else Solution.unknown(problem)


def dislikes_room(problem: Problem, answer: Solution) -> Any:
    graph = problem.graph
    room = graph.fixed_size + 2 * sum(t.size for t in graph.tensors)
    return answer if graph.n_ops < 2 or problem.budget < room else Solution.unknown(problem)


FAULTS: dict[str, tuple[Spoil, ...]] = {
    "answers": (raises, exits, another_type, another_graph, found_without_schedule),
    "valid": (invalid,),
    "within_budget": (over_budget,),
    "fixed_order": (out_of_order,),
    "reports_what_the_judge_sees": (misreports_cost, misreports_peak),
    "optimal_is_optimal": (lies_optimal, nearly_optimal, remembers_structures),
    "infeasible_is_infeasible": (lies_infeasible, infeasible_from_twelve_ops),
    "bound": (
        *(wrong_bound, no_number_as_bound, bound_a_little_high),
        *(with_another_seed, with_two_threads, above_twenty_ops),
    ),
    "progress": (false_progress, false_incumbent),
    "exact_solvers_prove": (gives_up,),
    "budgets_agree": (proofs_shrink, not_monotone),
    "orders_agree": (believes_in_the_order,),
    "names": (reads_names, chokes_on_names),
    "byte_scale": (rounds_to_mebibytes,),
    "deterministic": (whimsical,),
    "time_limit": (never_ends, three_times_the_limit, wrong_only_on_long_chains),
    "does_not_mutate": (scribbles, scribbles_where_there_is_room, overwrites),
    "picklable": (holds_a_lambda,),
    "empty_graphs": (dislikes_emptiness,),
    "room_for_everything": (dislikes_room,),
}
EXACT = {gives_up}
MONOTONE = {not_monotone}
RARE = {believes_in_the_order, not_monotone, proofs_shrink, remembers_structures}
ELSEWHERE: dict[Spoil, set[str]] = {
    proofs_shrink: {"infeasible_is_infeasible", "progress", "time_limit"},
    believes_in_the_order: {"infeasible_is_infeasible"},
    infeasible_from_twelve_ops: {"budgets_agree", "orders_agree"},
    remembers_structures: {"deterministic", "names", "byte_scale"},
    above_twenty_ops: {"progress", "time_limit"},
}
"""Other checks that a fault may fail, too."""

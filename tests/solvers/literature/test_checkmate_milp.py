"""The paper's MILP: the laws of solvers, its own space searched exhaustively, and published figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Problem, Status, Tensor, keep_all_peak
from checkmate.generators import chain, transformer
from checkmate.plugins import Solver
from checkmate.testing import SolverConformance, optimum
from checkmate.testing.strategies import graphs, problems, training_steps
from checkmate_solvers.engines import Highs
from checkmate_solvers.literature.checkmate_milp import CheckmateMilp
from checkmate_solvers.literature.stages import PaperProgram, Shape

from .space import best_in_stages

SMALL = st.one_of(graphs(max_ops=5), training_steps(max_layers=3))
PLAIN = CheckmateMilp(strengthened=False, proof=False, gap=0.0)


class TestCheckmateMilp(SolverConformance):
    solver_name = "checkmate-milp"
    examples = 8


class TestWithoutStages(SolverConformance):
    guarantee = "bound"
    features: ClassVar[frozenset[str]] = frozenset()
    examples = 4

    def solver(self) -> Solver:
        return CheckmateMilp(partitioned=False, backend=Highs(nodes=10))


@pytest.mark.parametrize("solver", [CheckmateMilp(gap=0.0), PLAIN], ids=["strengthened", "plain"])
@given(problem=problems(SMALL, fixed_order=True))
def test_it_is_exact_in_its_space(solver: CheckmateMilp, problem: Problem) -> None:
    assert solver.solve(problem).cost == pytest.approx(best_in_stages(problem), rel=1e-6)


@pytest.mark.parametrize(
    ("budget", "plain", "tight", "best"), [(4, 22, 23, 26), (5, 21, 22, 22), (6, 20, 21, 21), (8, 18, 19, 19)]
)
def test_the_chain_of_the_paper(budget: int, plain: int, tight: int, best: int) -> None:
    """Eight layers of unit cost and size; the tight relaxation is the optimum, except at the least budget."""
    graph = chain(8)
    shape = Shape(graph=graph, room=budget)
    for strengthened, value in ((False, plain), (True, tight)):
        program = PaperProgram(shape, strengthened=strengthened).program.relaxed()
        bound = Highs().solve(program, time_limit=60, gap=0.0).bound
        assert graph.ideal_cost + bound == pytest.approx(value, abs=1e-4)
    loose = PaperProgram(Shape(graph=graph, room=budget, partitioned=False), strengthened=False)
    bound = Highs().solve(loose.program.relaxed(), time_limit=60, gap=0.0).bound
    assert bound == pytest.approx(1.206, abs=5e-4)
    solution = CheckmateMilp().solve(Problem(graph=graph, budget=budget, time_limit=120))
    assert (solution.bound, solution.cost) == (best, best)  # the bound is that of the cut MILP
    assert "best in its stages" in solution.origin["schedule"]


def test_cheaper_schedules_may_exist_outside_of_the_space() -> None:
    """Op 5 needs 3 and 4, which need ops 0 and 1 run twice before op 5: that is one stage."""
    graph = DFGraph.from_nodes(
        cost=[1, 1, 1, 1, 2, 1, 1],
        size=[3, 3, 1, 1, 2, 1, 2],
        deps=[[], [0], [1], [2], [0, 2], [0, 1], [4, 5]],
        outputs=[6],
    )
    problem = Problem(graph=graph, budget=7, fixed_order=True)
    assert optimum(problem) == 12
    assert best_in_stages(problem) == math.inf
    solution = CheckmateMilp().solve(problem)
    assert (solution.status, solution.schedule) == (Status.UNKNOWN, None)
    assert solution.bound <= 12


def test_an_output_may_come_back_after_the_last_op() -> None:
    """While the last op runs there is no room for the first output, which its op makes again."""
    graph = DFGraph(
        ops=(
            Op(name="first", inputs=(), outputs=(0,), cost=1),
            Op(name="last", inputs=(), outputs=(1,), cost=1, workspace=4),
        ),
        tensors=(Tensor(name="a", size=2), Tensor(name="b", size=1)),
        outputs=(0, 1),
    )
    solution = CheckmateMilp().solve(Problem(graph=graph, budget=5, fixed_order=True))
    assert solution.cost == 3
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize("more", [1, 2, 7])
def test_a_budget_that_is_met_to_the_byte(more: int) -> None:
    """Sizes far beyond what the program counts in: rounded down they seem to fit, rounded up they do."""
    unit = 2**33 + 5
    plain = chain(4)
    graph = replace(
        plain, tensors=tuple(Tensor(name=str(i), size=unit + i * more) for i in range(plain.n_tensors))
    )
    for budget in range(3 * unit, 6 * unit, unit // 2):
        problem = Problem(graph=graph, budget=budget + 17, fixed_order=True)
        solution = CheckmateMilp(gap=0.0).solve(problem)
        assert solution.cost == best_in_stages(problem)


def test_what_is_too_large_is_refused_at_once() -> None:
    graph = transformer(24)
    solution = CheckmateMilp().solve(Problem(graph=graph, budget=keep_all_peak(graph) // 2))
    assert (solution.status, solution.bound) == (Status.UNKNOWN, graph.ideal_cost)

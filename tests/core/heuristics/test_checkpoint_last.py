"""Checkpoint last: its schedule, by the definition and by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from checkmate import DFGraph, Op, Plan, Problem, Status, Tensor, floor, lower
from checkmate.generators import chain
from checkmate.heuristics import CheckpointLast
from checkmate.testing.strategies import graphs


def answer(graph: DFGraph, budget: int = 10**9, time_limit: float = 10.0) -> object:
    """The op sequence of its schedule, or its status without a schedule."""
    solution = CheckpointLast().solve(Problem(graph=graph, budget=budget, time_limit=time_limit))
    return solution.status if solution.schedule is None else solution.schedule.sequence.tolist()


@given(graphs())
def test_it_is_the_least_plan_that_retains_the_outputs_of_the_op_before(graph: DFGraph) -> None:
    """It also retains graph outputs and outputs of ops that run only once."""
    lasting = set(graph.outputs).union(t for op in graph.ops if not op.recomputable for t in op.outputs)
    retain = np.zeros((graph.n_ops, graph.n_tensors), dtype=np.bool_)
    for t in range(graph.n_tensors):
        made = int(graph.producer[t])
        retain[made + 1 : None if t in lasting else made + 2, t] = made >= 0
    plan = Plan.from_retained(graph, retain)
    assert answer(graph) == lower(plan).sequence.tolist()


def test_on_a_chain_it_needs_the_least_memory_and_a_quadratic_cost() -> None:
    """Backward op i is preceded by forward ops 0 … n − 1 − i: n (n + 1) / 2 reruns in all."""
    for n in (2, 8, 30):
        graph = chain(n)
        sequence = answer(graph, floor(graph).size)
        assert isinstance(sequence, list)
        assert len(sequence) == 2 * n + 1 + n * (n + 1) // 2


def test_it_is_one_schedule_that_fits_or_not() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 4, size=[2, 2, 2, 2], deps=[[], [0], [1], [0, 2]])
    assert answer(graph, 6) == answer(graph, 100) == [0, 1, 2, 0, 3]
    wide = DFGraph.from_nodes(cost=[1] * 4, size=[2, 2, 2, 2], deps=[[], [0], [0, 1], [0, 1, 2]])
    assert answer(wide, 7) is Status.INFEASIBLE
    late = DFGraph.from_nodes(cost=[1] * 5, size=[1, 9, 1, 1, 1], deps=[[], [0], [1], [2], [2, 3]])
    assert answer(late, 10) is Status.UNKNOWN


def test_outputs_of_once_only_ops_and_graph_outputs_stay() -> None:
    graph = DFGraph(
        ops=(
            Op(name="dice", inputs=(), outputs=(0,), cost=1, recomputable=False),
            Op(name="loss", inputs=(0,), outputs=(1,), cost=1),
            Op(name="other", inputs=(), outputs=(2,), cost=1),
            Op(name="last", inputs=(0, 1, 2), outputs=(3,), cost=1),
        ),
        tensors=tuple(Tensor(name=str(t), size=1) for t in range(4)),
        outputs=(1, 3),
    )
    assert answer(graph) == [0, 1, 2, 3]


def test_a_schedule_that_would_be_too_long_or_take_too_long_is_not_written_down() -> None:
    assert answer(chain(2100)) is Status.UNKNOWN
    assert answer(chain(300), time_limit=1e-6) is Status.UNKNOWN

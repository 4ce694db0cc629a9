"""Laws of plans: from a schedule and back, no compute is lost; R for a given S is the least one."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkmate import Compute, DFGraph, Op, Plan, PlanError, Schedule, Tensor, lower, simulate
from checkmate.testing.strategies import graphs, valid_schedules

Mask = npt.NDArray[np.bool_]


@st.composite
def retained(draw: st.DrawFn, graph: DFGraph) -> Mask:
    """Any S with n_ops stages that retains no tensor too early."""
    row = st.lists(st.booleans(), min_size=graph.n_tensors, max_size=graph.n_tensors)
    rows = draw(st.lists(row, min_size=graph.n_ops, max_size=graph.n_ops))
    given_rows = np.array(rows, dtype=bool).reshape(graph.n_ops, graph.n_tensors)
    return given_rows & makeable(graph)


def makeable(graph: DFGraph) -> Mask:
    """The lower triangle: stage × tensor, true where the tensor's op comes before the stage's."""
    return (graph.producer < np.arange(graph.n_ops)[:, None]) & (graph.producer >= 0)


def executable(plan: Plan) -> bool:
    """The definition, written with sets."""
    graph = plan.graph
    resident, ran = set(graph.inputs), set[int]()
    for t in range(plan.n_stages):
        kept = {u for u in range(graph.n_tensors) if plan.retain[t, u]}
        if not kept <= resident:
            return False
        resident = kept | set(graph.inputs)
        for v in range(graph.n_ops):
            if plan.compute[t, v]:
                op = graph.ops[v]
                if not set(op.inputs) <= resident or (v in ran and not op.recomputable):
                    return False
                resident |= set(op.outputs)
                ran.add(v)
    return set(graph.outputs) <= resident


# --- Plan.of ----------------------------------------------------------------------------------------------


@given(data=st.data())
def test_a_schedule_and_its_plan_compute_the_same_in_the_same_order(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(valid_schedules(graph))
    plan = Plan.of(graph, schedule)
    assert executable(plan)
    lowered = lower(plan)
    assert lowered.sequence.tolist() == schedule.sequence.tolist()
    before, after = simulate(graph, schedule), simulate(graph, lowered)
    assert after.runs.tolist() == before.runs.tolist()
    assert after.cost == before.cost
    assert after.peak <= before.peak
    assert Plan.of(graph, lowered) == plan


@given(data=st.data())
def test_nothing_is_retained_needlessly(data: st.DataObject) -> None:
    """Any entry of S left out makes the plan one that can't be executed."""
    graph = data.draw(graphs(max_ops=5))
    plan = Plan.of(graph, data.draw(valid_schedules(graph)))
    for t, u in np.argwhere(plan.retain):
        fewer = plan.retain.copy()
        fewer[t, u] = False
        assert not executable(Plan(graph, plan.compute, fewer))


@given(data=st.data())
def test_retained_tensors_are_resident_when_a_stage_begins(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(valid_schedules(graph))
    plan = Plan.of(graph, schedule)
    timeline = simulate(graph, schedule)
    computes = [k for k, step in enumerate(schedule) if isinstance(step, Compute)]
    begins = np.cumsum([0, *plan.compute.sum(axis=1)])[:-1]
    for retains, begin in zip(plan.retain, begins, strict=True):
        assert set(np.flatnonzero(retains)) <= timeline.resident_at(computes[begin]) - set(graph.inputs)


def test_the_stages_of_an_order_of_its_own() -> None:
    """Op 1 runs before op 0; then both again in that order, which needs a stage each; op 2 reads 0 twice."""
    graph = DFGraph.from_nodes(cost=[1] * 3, size=[1] * 3, deps=[[], [], [0, 1]])
    plan = Plan.of(graph, Schedule.from_sequence(graph, [1, 0, 1, 0, 2, 0, 1]))
    assert plan.compute.astype(int).tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 0]]
    assert plan.retain.astype(int).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert repr(plan) == "<Plan: 5 stages, 7 computes, 2 retained>"


def test_graph_inputs_and_side_effects_and_nothing_at_all() -> None:
    graph = DFGraph(
        ops=(Op(name="effect", inputs=(0,), outputs=(), cost=1.0),),
        tensors=(Tensor(name="in", size=4),),
        inputs=(0,),
        outputs=(0,),
    )
    plan = Plan.of(graph, Schedule.from_sequence(graph, [0]))
    assert plan.compute.tolist() == [[True]]
    assert plan.retain.tolist() == [[False]]
    nothing = Plan.of(graph, Schedule.from_sequence(graph, []))
    assert (nothing.n_stages, len(lower(nothing))) == (0, 0)
    assert Plan.from_retained(graph, np.ones((1, 1), dtype=bool)) == plan
    empty = DFGraph(ops=(), tensors=())
    assert Plan.from_retained(empty, np.zeros((0, 0), dtype=bool)) == Plan.of(empty, Schedule.of([]))


def test_a_schedule_that_is_not_valid_has_no_plan() -> None:
    chain = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], [0]])
    with pytest.raises(PlanError, match="needs tensor 0 '0' but hasn't made it"):
        Plan.of(chain, Schedule.of([Compute(1)]))
    with pytest.raises(PlanError, match="needs tensor 1 '1'"):
        Plan.of(chain, Schedule.of([Compute(0)]))
    with pytest.raises(PlanError, match="computes op 2, which this graph does not have"):
        Plan.of(chain, Schedule.of([Compute(2)]))


# --- Plan.from_retained -----------------------------------------------------------------------------------


@given(data=st.data())
def test_from_retained_is_executable_and_least(data: st.DataObject) -> None:
    """Every entry off the diagonal is needed: without it, the plan can't be executed."""
    graph = data.draw(graphs(recomputable=True))
    plan = Plan.from_retained(graph, data.draw(retained(graph)))
    assert executable(plan)
    assert simulate(graph, lower(plan)).runs.tolist() == plan.compute.sum(axis=0).tolist()
    for t, v in np.argwhere(plan.compute & ~np.eye(graph.n_ops, dtype=bool)):
        fewer = plan.compute.copy()
        fewer[t, v] = False
        with pytest.raises(PlanError):
            lower(Plan(graph, fewer, plan.retain))


@given(data=st.data())
def test_from_retained_agrees_with_brute_force(data: st.DataObject) -> None:
    """Of all R with R[t, t] = 1 and nothing above the diagonal, the intersection of the executable ones."""
    graph = data.draw(graphs(max_ops=4))
    retain = data.draw(retained(graph))
    below = np.argwhere(np.tri(graph.n_ops, k=-1, dtype=bool))
    found = []
    for bits in product([False, True], repeat=len(below)):
        compute = np.eye(graph.n_ops, dtype=bool)
        compute[tuple(below.T)] = bits
        if executable(Plan(graph, compute, retain)):
            found.append(compute)
    if found:
        assert np.array_equal(Plan.from_retained(graph, retain).compute, np.logical_and.reduce(found))
    else:
        with pytest.raises(PlanError, match="may run only once"):
            Plan.from_retained(graph, retain)


@given(graphs())
def test_retaining_everything_runs_every_op_once(graph: DFGraph) -> None:
    plan = Plan.from_retained(graph, makeable(graph))
    assert np.array_equal(plan.compute, np.eye(graph.n_ops, dtype=bool))
    assert lower(plan) == Schedule.from_sequence(graph, range(graph.n_ops))


@given(data=st.data())
def test_from_retained_computes_no_more_than_a_schedule_that_retains_the_same(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = Plan.of(graph, data.draw(valid_schedules(graph)))
    assume(plan.n_stages == graph.n_ops)
    assume(bool(plan.compute.diagonal().all()))
    assert not (Plan.from_retained(graph, plan.retain).compute & ~plan.compute).any()


def test_a_tensor_cannot_be_retained_before_it_is_made() -> None:
    graph = DFGraph.from_nodes(cost=[1] * 3, size=[1] * 3, deps=[[], [0], [1]])
    retain = np.zeros((3, 3), dtype=bool)
    retain[1, 1] = True
    with pytest.raises(PlanError, match="stage 1 can't retain tensor 1 '1': op 1 '1' first runs in a stage"):
        Plan.from_retained(graph, retain)


def test_outputs_of_once_only_ops_have_to_be_retained() -> None:
    graph = DFGraph(
        ops=(
            Op(name="dropout", inputs=(), outputs=(0,), cost=1, recomputable=False),
            Op(name="layer", inputs=(0,), outputs=(1,), cost=1),
            Op(name="back", inputs=(0, 1), outputs=(2,), cost=1),
        ),
        tensors=tuple(Tensor(name=f"t{t}", size=1) for t in range(3)),
        outputs=(2,),
    )
    retain = np.tri(3, k=-1, dtype=bool)
    retain[2, 0] = False
    with pytest.raises(PlanError, match=r"stage 2 needs tensor 0 't0' of op 0 'dropout'.* from 1 to 2"):
        Plan.from_retained(graph, retain)


# --- the matrices -----------------------------------------------------------------------------------------


def test_matrices_are_private_read_only_and_of_one_shape() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[1, 1], deps=[[], [0]])
    mine = np.eye(2, dtype=bool)
    plan = Plan(graph, mine, np.tri(2, k=-1, dtype=bool))
    mine[:] = False
    assert plan.compute.tolist() == [[True, False], [False, True]]
    assert not plan.compute.flags.writeable
    assert not plan.retain.flags.writeable
    assert plan == Plan.of(graph, lower(plan))
    assert hash(plan) == hash(Plan.of(graph, lower(plan)))
    assert plan != Plan(graph, mine, plan.retain)
    with pytest.raises(
        PlanError, match=r"retain is of bool with shape \(1, 2\), must be of bool with \(2, 2\)"
    ):
        Plan(graph, plan.compute, plan.retain[:1])
    with pytest.raises(PlanError, match="compute is of int64"):
        Plan(graph, np.eye(2, dtype=np.int64), plan.retain)  # type: ignore[arg-type]


def test_a_plan_too_large_for_matrices_is_refused() -> None:
    n = 30_000
    graph = DFGraph.from_nodes(cost=[1] * n, size=[1] * n, deps=[[]] * n)
    with pytest.raises(PlanError, match=r"30000 stages.* use a Schedule"):
        Plan.of(graph, Schedule.from_sequence(graph, range(n)))
    with pytest.raises(PlanError, match="dense"):
        Plan.from_retained(graph, np.zeros((1, 1), dtype=bool))


def test_a_stage_of_a_graph_without_ops_retains_nothing_and_lowers_to_nothing() -> None:
    graph = DFGraph(ops=(), tensors=(Tensor(name="x", size=3),), inputs=(0,), outputs=(0,))
    plan = Plan(graph, np.zeros((1, 0), dtype=np.bool_), np.zeros((1, 1), dtype=np.bool_))
    assert len(lower(plan)) == 0


@pytest.mark.parametrize("shape", [(), (2,), (2**28, 3)])
def test_matrices_of_another_shape_or_too_many_stages_are_refused(shape: tuple[int, ...]) -> None:
    """The last without being copied: it has 2^30 entries and a few bytes."""
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [0], [1]])
    matrix = np.broadcast_to(np.bool_(False), shape)
    with pytest.raises(PlanError):
        Plan(graph, matrix, matrix)

"""Differences between graphs: none exactly if the schedules of one are those of the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, InvalidScheduleError, Op, Schedule, Tensor, simulate
from checkmate.framework import differences
from checkmate.testing.strategies import graphs, schedules

GRAPH = DFGraph(
    ops=(
        Op(name="first", inputs=(0, 1), outputs=(2,), cost=1.0),
        Op(name="conv", inputs=(2,), outputs=(3, 4), cost=1.0),
        Op(name="loss", inputs=(3,), outputs=(5,), cost=1.0),
    ),
    tensors=tuple(Tensor(name=name, size=64) for name in ("x", "y", "a", "b", "c", "d")),
    inputs=(0, 1),
    outputs=(5,),
)


def with_op(i: int, **fields: object) -> DFGraph:
    """The graph with another op ``i``."""
    ops = [*GRAPH.ops]
    ops[i] = replace(ops[i], **fields)  # type: ignore[arg-type]
    return replace(GRAPH, ops=tuple(ops))


def resized(graph: DFGraph, t: int, size: int) -> DFGraph:
    tensors = [*graph.tensors]
    tensors[t] = replace(tensors[t], size=size)
    return replace(graph, tensors=tuple(tensors))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (with_op(2, inputs=(4,)), "op 2 'loss' reads tensor 3, not 4"),
        (with_op(2, inputs=(3, 4)), "op 2 'loss' doesn't read tensor 4"),
        (with_op(0, inputs=(1,)), "op 0 'first' also reads tensor 0"),
        (with_op(1, recomputable=False), "op 1 'conv' may run several times, not only once"),
        (resized(GRAPH, 4, 128), "tensor 4 'c' has 64 bytes, not 128"),
        (replace(GRAPH, outputs=(4,)), "the graph has output tensor 5, not 4"),
        (replace(GRAPH, outputs=(4, 5)), "the graph lacks output tensor 4"),
        (
            replace(GRAPH, tensors=(*GRAPH.tensors, Tensor(name="z", size=8)), inputs=(0, 1, 6)),
            "6 tensors, not 7; the graph lacks input tensor 6",
        ),
        (replace(GRAPH, ops=GRAPH.ops[:2], tensors=GRAPH.tensors[:5], outputs=(4,)), "3 ops, not 2"),
    ],
)
def test_a_difference_names_its_place(other: DFGraph, text: str) -> None:
    assert text in differences(GRAPH, other)


def test_the_first_op_of_several_is_named_and_harmless_facts_are_not() -> None:
    other = with_op(1, inputs=(0,), outputs=(3, 4), cost=2.0)
    other = replace(other, ops=(*other.ops[:2], replace(other.ops[2], inputs=(4,))), fixed_size=5)
    assert differences(GRAPH, other) == "op 1 'conv' reads tensor 2, not 0"


HARMLESS: dict[str, Callable[[DFGraph], DFGraph]] = {
    "costs": lambda g: replace(g, ops=tuple(replace(op, cost=op.cost + 1) for op in g.ops)),
    "cost units": lambda g: replace(g, cost_unit="apples"),
    "workspaces": lambda g: replace(g, ops=tuple(replace(op, workspace=7) for op in g.ops)),
    "fixed bytes": lambda g: replace(g, fixed_size=g.fixed_size + 1),
    "names": lambda g: replace(g, tensors=tuple(replace(t, name=f"{t.name}'") for t in g.tensors)),
    "backward": lambda g: replace(g, ops=tuple(replace(op, backward=not op.backward) for op in g.ops)),
    "order of reads": lambda g: replace(
        g, ops=tuple(replace(op, inputs=tuple(reversed(op.inputs))) for op in g.ops)
    ),
}


def verdict(graph: DFGraph, schedule: Schedule) -> object:
    try:
        return simulate(graph, schedule).runs.tolist()
    except InvalidScheduleError as error:
        return error.step, error.reason


@given(st.data(), graphs(), st.sampled_from(sorted(HARMLESS)))
def test_without_differences_the_same_schedules_are_valid(
    data: st.DataObject, graph: DFGraph, change: str
) -> None:
    other = HARMLESS[change](graph)
    assert differences(graph, other) == differences(other, graph) == ""
    schedule = data.draw(schedules(graph))
    assert verdict(graph, schedule) == verdict(other, schedule)


@given(graphs(), graphs())
def test_two_graphs_differ_both_ways_or_not_at_all(graph: DFGraph, other: DFGraph) -> None:
    assert bool(differences(graph, other)) == bool(differences(other, graph))
    assert differences(graph, other) or graph.sizes.tolist() == other.sizes.tolist()

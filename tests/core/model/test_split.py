"""Laws of splitting: identity, totals, floors, orders, and the same values by any schedule, with NumPy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from numpy_tape import network

from checkmate import (
    DFGraph,
    GraphBuilder,
    Group,
    Op,
    Schedule,
    SplitGraph,
    Tensor,
    floor,
    keep_all_peak,
    split,
)
from checkmate.errors import GraphError
from checkmate.model.schedule import Compute
from checkmate.model.split import Rule
from checkmate.simulate import simulate
from checkmate.testing.strategies import branches, dressed, graphs, training_steps, valid_schedules

ANY = st.one_of(graphs(min_ops=3, max_ops=12), dressed(training_steps(max_layers=5)), dressed(branches()))
Array = npt.NDArray[Any]


@st.composite
def groups(draw: st.DrawFn, graph: DFGraph) -> Group:
    """A group of some ops that make a tensor, any rules, and perhaps a barrier."""
    able = [v for v, op in enumerate(graph.ops) if op.outputs]
    inside = draw(st.sets(st.sampled_from(able), min_size=1))
    kinds = st.sampled_from(["row", "row", "sum"])
    rest = [v for v in range(graph.n_ops) if v not in inside]
    return Group(
        rows=draw(st.integers(1, 7)),
        rules={v: tuple(draw(kinds) for _ in graph.ops[v].outputs) for v in inside},
        fixed_costs={v: graph.ops[v].cost * draw(st.sampled_from([0, 0.5, 1])) for v in inside},
        barrier=draw(st.sampled_from([None, *rest])),
    )


@st.composite
def splits(draw: st.DrawFn) -> SplitGraph:
    """A graph that is split."""
    graph = draw(ANY.filter(lambda graph: any(op.outputs for op in graph.ops)))
    group = draw(groups(graph))
    return split(graph, group, draw(st.integers(1, group.rows)))


def base_order(graph: DFGraph) -> Schedule:
    return Schedule.from_sequence(graph, range(graph.n_ops))


@given(splits())
def test_one_piece_is_the_identity(cut: SplitGraph) -> None:
    whole = split(cut.source, cut.group, 1)
    assert whole.graph is cut.source
    assert whole.rows == (range(cut.group.rows),)
    assert whole.runs == tuple((v,) for v in range(cut.source.n_ops))
    assert split(cut.source, cut.group, [cut.group.rows]) == whole


@given(splits())
def test_each_op_runs_whole_or_once_for_each_range_of_rows(cut: SplitGraph) -> None:
    assert [row for rows in cut.rows for row in rows] == list(range(cut.group.rows))
    many = range(len(cut.rows))
    for v, runs in enumerate(cut.runs):
        indices = [cut.pieces[i].index for i in runs]
        assert indices == (list(many) if v in cut.group.rules and len(many) > 1 else [None])
    flags = [(op.recomputable, op.backward, op.workspace) for op in cut.graph.ops]
    source = [(op.recomputable, op.backward, op.workspace) for op in cut.source.ops]
    assert flags == [source[piece.op] for piece in cut.pieces]


@given(splits())
def test_pieces_of_a_tensor_have_its_bytes(cut: SplitGraph) -> None:
    bytes_of = [0] * cut.source.n_tensors
    for tensor, part in zip(cut.graph.tensors, cut.parts, strict=True):
        if part.whole:
            assert tensor.size == cut.source.tensors[part.tensor].size
        if part.whole <= (part.index in (None, len(cut.rows) - 1)):
            bytes_of[part.tensor] += tensor.size
    assert bytes_of == [tensor.size for tensor in cut.source.tensors]


@given(splits())
def test_costs_without_fixed_part_keep_their_total_and_fixed_parts_are_paid_by_each_piece(
    cut: SplitGraph,
) -> None:
    group, k = cut.group, len(cut.rows)
    fixed = math.fsum(group.fixed_costs.values())
    assert cut.graph.ideal_cost == pytest.approx(cut.source.ideal_cost + (k - 1) * fixed)
    free = split(cut.source, replace(group, fixed_costs={}), [len(rows) for rows in cut.rows])
    assert free.graph.ideal_cost == pytest.approx(cut.source.ideal_cost)


@given(splits())
def test_the_floor_is_never_above_the_whole_graphs(cut: SplitGraph) -> None:
    """Ops that are cut no longer write over whole inputs, so no op of the group reuses one here."""
    inside = cut.group.rules
    ops = tuple(replace(op, reuses=()) if v in inside else op for v, op in enumerate(cut.source.ops))
    whole = replace(cut.source, ops=ops)
    pieces = split(whole, cut.group, [len(rows) for rows in cut.rows]).graph
    event(f"lower: {floor(pieces).size < floor(whole).size}")
    assert floor(pieces).size <= floor(whole).size


@given(splits())
def test_outputs_inputs_and_dependencies_are_kept(cut: SplitGraph) -> None:
    for ours, theirs in ((cut.graph.inputs, cut.source.inputs), (cut.graph.outputs, cut.source.outputs)):
        parts = [cut.parts[t] for t in ours]
        assert [part.tensor for part in parts] == list(theirs)
        assert all(part.whole and part.index in (None, len(cut.rows) - 1) for part in parts)
    for piece, op in zip(cut.pieces, cut.graph.ops, strict=True):
        source = cut.source.ops[piece.op]
        assert [cut.parts[t].tensor for t in op.outputs] == list(source.outputs)
        assert [cut.parts[t].tensor for t in op.inputs[: len(source.inputs)]] == list(source.inputs)
        before = op.inputs[len(source.inputs) :]
        written = [t for t in op.outputs if piece.index and cut.parts[t].whole]
        assert [cut.parts[t] for t in before] == [
            replace(cut.parts[t], index=(piece.index or 0) - 1) for t in written
        ]
        assert set(before) <= set(op.reuses)


@given(splits())
def test_rows_flow_within_a_piece_or_from_segment_to_segment(cut: SplitGraph) -> None:
    """Between a maker and a reader of the same rows there are only ops on these rows, or all of the maker."""
    for v, runs in enumerate(cut.runs):
        for t in cut.source.ops[v].inputs:
            u = int(cut.source.producer[t])
            if len(runs) == 1 or u not in cut.group.rules:
                continue
            makers = cut.runs[u]
            rule = cut.group.rules[u][cut.source.ops[u].outputs.index(t)]
            if rule == "sum" or makers[-1] < runs[0]:
                assert makers[-1] < runs[0]
                continue
            for i, (a, b) in enumerate(zip(makers, runs, strict=True)):
                assert {piece.index for piece in cut.pieces[a : b + 1]} == {i}


@given(splits())
def test_the_barrier_stays_between_the_ops_of_the_group(cut: SplitGraph) -> None:
    barrier = cut.group.barrier
    if barrier is not None:
        for v in cut.group.rules:
            assert {i < cut.runs[barrier][0] for i in cut.runs[v]} == {v < barrier}


@given(splits(), st.data())
def test_two_groups_are_cut_one_after_the_other(cut: SplitGraph, data: st.DataObject) -> None:
    rest = [v for v in range(cut.source.n_ops) if v not in cut.group.rules and cut.source.ops[v].outputs]
    if not rest or len(cut.rows) == 1:
        return
    v = data.draw(st.sampled_from(rest))
    other = Group(rows=2, rules={v: ("sum",) * len(cut.source.ops[v].outputs)}, fixed_costs={v: 0.0})
    both = split(cut.graph, cut.moved(other), 2)
    runs = Counter(cut.pieces[piece.op].op for piece in both.pieces)
    assert runs[v] == 2
    assert all(runs[u] == len(cut.rows) for u in cut.group.rules)
    simulate(both.graph, base_order(both.graph))
    with pytest.raises(GraphError, match="already in pieces"):
        cut.moved(cut.group)


# The same values: programs on arrays, and a runner of schedules.


class Kind(NamedTuple):
    """A function of matrices; r = with rows, s = without; unless ``cuts``, it needs and makes whole ones."""

    run: Callable[..., tuple[Array, ...]]
    takes: str
    makes: str
    cuts: bool = True


KINDS = {  # of integers, whose sums are exact in any order
    "map": Kind(lambda a: (3 * a % 101 + 1,), "r", "r"),
    "add": Kind(lambda a, b: ((a - 2 * b) % 101,), "rr", "r"),
    "matmul": Kind(lambda a, w: (a @ w % 101,), "rs", "r"),
    "gram": Kind(lambda a, b: (a.T @ b,), "rr", "s"),
    "back": Kind(lambda a, b, w: (b @ w.T % 101, a.T @ b), "rrs", "rs"),
    "pair": Kind(lambda a: (a * a % 101, a + 1), "r", "rr"),
    "roll": Kind(lambda a: (np.roll(a, 1, axis=0),), "r", "r", cuts=False),
    "square": Kind(lambda w: (w % 101,), "s", "s", cuts=False),
}


class Call(NamedTuple):
    name: str
    run: Callable[..., Sequence[Array]]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    cuts: bool


class Program(NamedTuple):
    """Calls on arrays; ``forms`` has r or s for each tensor, first the inputs."""

    inputs: tuple[Array, ...]
    forms: str
    calls: list[Call]

    def values(self) -> list[Array]:
        values = list(self.inputs)
        for call in self.calls:
            values += call.run(*(values[t] for t in call.reads))
        return values

    def graph(self, outputs: Sequence[int], once: set[int]) -> DFGraph:
        ops = [
            Op(
                name=call.name,
                inputs=call.reads,
                outputs=call.makes,
                cost=1.0,
                recomputable=v not in once,
                reuses=call.reads[:1] if call.name in ("map", "add") else (),
            )
            for v, call in enumerate(self.calls)
        ]
        return DFGraph(
            ops=tuple(ops),
            tensors=tuple(Tensor(name=f"t{t}", size=a.nbytes) for t, a in enumerate(self.values())),
            inputs=tuple(range(len(self.inputs))),
            outputs=tuple(outputs),
        )

    def group(self, inside: Sequence[int]) -> Group:
        rules: dict[int, tuple[Rule, ...]] = {
            v: tuple("row" if self.forms[t] == "r" else "sum" for t in self.calls[v].makes) for v in inside
        }
        return Group(rows=len(self.inputs[0]), rules=rules)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A few calls on a matrix of six rows and a square one."""
    inputs = (np.arange(12).reshape(6, 2) % 7 - 3, np.array([[1, -2], [3, 5]]))
    calls: list[Call] = []
    forms = "rs"
    for _ in range(draw(st.integers(1, 9))):
        name = draw(st.sampled_from(sorted(KINDS)))
        kind = KINDS[name]
        choices = [[t for t, form in enumerate(forms) if form == need] for need in kind.takes]
        reads = tuple(draw(st.sampled_from(some[-4:])) for some in choices)
        if len(set(reads)) == len(reads):
            makes = tuple(range(len(forms), len(forms) + len(kind.makes)))
            calls.append(Call(name, kind.run, reads, makes, kind.cuts))
            forms += kind.makes
    return Program(inputs, forms, calls)


def taped() -> tuple[Program, Sequence[int]]:
    """The training step of the framework in miniature, whose batch has 64 rows, and its outputs."""
    tape = network()
    forms = "".join("r" if len(array) == 64 else "s" for array in tape.arrays)
    names = {"matmul", "matmul back", "relu", "relu back", "multiply", "add", "loss", "loss back"}
    calls = [
        Call(
            name=call.name,
            run=lambda *arrays, kind=call.kind: kind.run(arrays),
            reads=call.reads,
            makes=call.makes,
            cuts=call.name in names and "r" in [forms[t] for t in call.reads],
        )
        for call in tape.calls
    ]
    return Program(tuple(tape.arrays[t] for t in tape.inputs), forms, calls), tape.outputs


def run(program: Program, cut: SplitGraph, schedule: Schedule) -> dict[int, Array]:
    """Follow a schedule of a split graph with arrays; what is freed or not yet written is rubbish.

    An op that reuses a tensor which the schedule frees right after it writes into its memory.
    """
    held = {t: array.copy() for t, array in zip(cut.graph.inputs, program.inputs, strict=True)}
    timeline = simulate(cut.graph, schedule)
    taken: set[int] = set()
    for k, step in enumerate(schedule):
        if isinstance(step, Compute):
            taken = set(timeline.reused_at(k))
            compute(program, cut, step.op, held, taken)
        else:
            lost = held.pop(step.tensor)
            if step.tensor not in taken:
                lost[:] = -999
    return {cut.parts[t].tensor: held[t] for t in cut.graph.outputs}


def compute(program: Program, cut: SplitGraph, i: int, held: dict[int, Array], taken: set[int]) -> None:
    """Run one op of a split graph; tensors of ``taken`` lend their memory."""
    op, piece = cut.graph.ops[i], cut.pieces[i]
    call = program.calls[piece.op]
    reads, before = op.inputs[: len(call.reads)], {cut.parts[t].tensor: t for t in op.inputs}
    span = range(cut.group.rows) if piece.index is None else cut.rows[piece.index]
    rows = slice(span.start, span.stop)
    parts = [cut.parts[t] for t in reads]
    sliced = [part.whole and program.forms[part.tensor] == "r" for part in parts]
    made = call.run(*(held[t][rows] if cuts else held[t] for t, cuts in zip(reads, sliced, strict=True)))
    lent = [held[t] for t in reads if t in taken]
    for t, result in zip(op.outputs, made, strict=True):
        part = cut.parts[t]
        last = before.get(part.tensor)
        if piece.index is None or not part.whole:
            held[t] = lent.pop() if lent else np.empty_like(result)
            held[t][:] = result
            continue
        shape = (cut.group.rows if program.forms[part.tensor] == "r" else len(result), *result.shape[1:])
        old = np.full(shape, -77, result.dtype) if last is None else held[last]
        held[t] = old if last in taken else old.copy()
        if program.forms[part.tensor] == "r":
            held[t][rows] = result
        else:
            held[t][:] = result if last is None else old + result


@given(programs(), st.data())
def test_any_schedule_of_a_split_graph_computes_the_same_values(
    program: Program, data: st.DataObject
) -> None:
    able = [v for v, call in enumerate(program.calls) if call.cuts]
    if not able:
        return
    outputs = data.draw(st.sets(st.sampled_from(range(2, len(program.forms))), min_size=1))
    graph = program.graph(sorted(outputs), data.draw(st.sets(st.sampled_from(able), max_size=2)))
    inside = data.draw(st.sets(st.sampled_from(able), min_size=1))
    sizes = data.draw(st.sampled_from([2, 3, 4, 6, [1, 5], [4, 2], [3, 1, 2]]))
    cut = split(graph, program.group(sorted(inside)), sizes)
    event(f"pieces of their own: {any(not part.whole for part in cut.parts)}")
    expected = program.values()
    for schedule in (base_order(cut.graph), data.draw(valid_schedules(cut.graph, reorder=True))):
        values = run(program, cut, schedule)
        for t in outputs:
            assert np.array_equal(values[t], expected[t])


@given(st.data())
def test_a_taped_training_step_in_pieces_computes_the_same_values(data: st.DataObject) -> None:
    program, outputs = taped()
    able = [v for v, call in enumerate(program.calls) if call.cuts]
    inside = data.draw(st.sets(st.sampled_from(able), min_size=1))
    cut = split(program.graph(outputs, set()), program.group(sorted(inside)), data.draw(st.integers(2, 9)))
    values = run(program, cut, data.draw(valid_schedules(cut.graph)))
    expected = program.values()
    for t in outputs:
        np.testing.assert_allclose(values[t], expected[t], rtol=1e-10)


# Known answers: linear, log-softmax, negative log-likelihood, and their backward ops.


def loss(boundary: bool = False) -> DFGraph:
    """8 tokens, 16 words, 2 features, a byte a number; ``boundary``: the loss's gradient is outside."""
    b = GraphBuilder("loss", cost_unit="flop")
    b.input("x", 16)
    b.input("w", 32)
    b.op("linear", reads=["x", "w"], makes={"y": 128}, cost=512)
    b.op("log-softmax", reads=["y"], makes={"p": 128}, cost=128)
    b.op("nll", reads=["p"], makes={"loss": 1}, cost=8)
    if boundary:
        b.op("boundary", reads=["loss"], makes={"g": 1}, cost=0, recomputable=False)
    g = ["g"] if boundary else []
    b.op("nll.back", reads=["p", *g], makes={"dp": 128}, cost=128, backward=True)
    b.op("log-softmax.back", reads=["p", "dp"], makes={"dy": 128}, cost=128, backward=True)
    b.op("linear.back", reads=["dy", "x", "w"], makes={"dx": 16, "dw": 32}, cost=1024, backward=True)
    b.output("loss", "dx", "dw")
    return b.build()


RULES = [("row",), ("row",), ("sum",), ("row",), ("row",), ("row", "sum")]


def loss_group(graph: DFGraph, **others: Any) -> Group:
    inside = [v for v, op in enumerate(graph.ops) if op.name != "boundary"]
    return Group(rows=8, rules=dict(zip(inside, RULES, strict=True)), **others)


def test_a_loss_in_four_pieces_needs_a_quarter_of_its_logits() -> None:
    graph = loss()
    assert floor(graph).size == 48 + 3 * 128  # x and w; p, dp and dy
    assert keep_all_peak(graph) == 48 + 3 * 128 + 1  # and the loss
    cut = split(graph, loss_group(graph), 4)
    assert [piece.op for piece in cut.pieces] == [0, 1, 2, 3, 4, 5] * 4  # one segment: forward, then backward
    assert [piece.index for piece in cut.pieces] == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    assert floor(cut.graph).size == 48 + 3 * 32
    assert keep_all_peak(cut.graph) == 48 + 3 * 32 + 1 + 48  # dx and dw grow from the second piece on
    assert cut.graph.ideal_cost == graph.ideal_cost == 1928
    assert repr(cut) == "<SplitGraph: 6 ops in 4 pieces, <DFGraph 'loss': 24 ops, 30 tensors, cost in flop>>"
    assert [cut.graph.ops[i].name for i in cut.runs[0]] == [
        "linear[0:2]",
        "linear[2:4]",
        "linear[4:6]",
        "linear[6:8]",
    ]
    assert [t.name for t in cut.graph.tensors if t.name.startswith("d")][-8:] == [
        *["dx[:2]", "dx[:4]", "dx[:6]", "dx"],
        *["dw[:2]", "dw[:4]", "dw[:6]", "dw"],
    ]
    assert cut.graph.ops[cut.runs[5][1]] == Op(
        name="linear.back[2:4]",
        inputs=(*cut.graph.ops[cut.runs[4][1]].outputs, 0, 1, *cut.graph.ops[cut.runs[5][0]].outputs),
        outputs=tuple(t + 1 for t in cut.graph.ops[cut.runs[5][0]].outputs),
        cost=256,
        backward=True,
        reuses=cut.graph.ops[cut.runs[5][0]].outputs,
    )


def test_what_waits_for_the_whole_loss_is_another_segment() -> None:
    graph = loss(boundary=True)
    cut = split(graph, loss_group(graph), 4)
    assert [piece.op for piece in cut.pieces] == [0, 1, 2] * 4 + [3] + [4, 5, 6] * 4
    assert floor(cut.graph).size == 48 + 3 * 32  # log-softmax.back, as before
    # Four pieces of p wait for g. In the second round three are left, beside dp, dy, the loss, g, dx and dw.
    assert keep_all_peak(cut.graph) == 48 + 3 * 32 + 2 * 32 + 2 + 48


def test_a_tensor_that_others_read_is_written_piece_by_piece() -> None:
    """Readers on the same rows read each version, all others the last."""
    b = GraphBuilder("whole")
    b.input("x", 8)
    b.op("a", reads=["x"], makes={"a": 8})
    b.op("b", reads=["a"], makes={"b": 7})
    b.op("mean", reads=["a"], makes={"m": 1})
    b.op("c", reads=["a", "b", "m"], makes={"c": 8})
    b.output("c")
    cut = split(b.build(), Group(rows=4, rules={0: ("row",), 1: ("row",), 3: ("row",)}), [3, 1])
    names = [t.name for t in cut.graph.tensors]
    assert [(t.name, t.size) for t in cut.graph.tensors] == [
        *[("x", 8), ("a[:3]", 8), ("a", 8), ("b[0:3]", 5), ("b[3:4]", 2), ("m", 1), ("c[:3]", 8), ("c", 8)]
    ]
    reads = {op.name: [names[t] for t in op.inputs] for op in cut.graph.ops}
    assert reads == {
        "a[0:3]": ["x"],
        "b[0:3]": ["a[:3]"],
        "a[3:4]": ["x", "a[:3]"],
        "b[3:4]": ["a"],
        "mean": ["a"],
        "c[0:3]": ["a", "b[0:3]", "m"],
        "c[3:4]": ["a", "b[3:4]", "m", "c[:3]"],
    }
    assert list(reads) == [op.name for op in cut.graph.ops]


def test_readers_of_one_whole_tensor_are_segments_of_their_own() -> None:
    b = GraphBuilder("two readers")
    b.op("a", makes={"a": 8})
    b.op("mean", reads=["a"], makes={"m": 1})
    b.op("c", reads=["a", "m"], makes={"c": 8})
    b.op("between", reads=["c"], makes={"n": 1})
    b.op("d", reads=["a", "m"], makes={"d": 8})
    b.output("n", "d")
    cut = split(b.build(), Group(rows=2, rules={0: ("row",), 2: ("row",), 4: ("row",)}), 2)
    assert [piece.op for piece in cut.pieces] == [0, 0, 1, 2, 2, 3, 4, 4]


def test_an_op_keeps_what_it_reuses_if_all_its_tensors_are_pieces() -> None:
    b = GraphBuilder()
    b.op("a", makes={"a": 8})
    b.op("relu", reads=["a"], makes={"r": 8}, reuses=["a"])
    b.op("square", reads=["r"], makes={"s": 8}, reuses=["r"])
    b.op("sum", reads=["s"], makes={"t": 1})
    b.output("s", "t")
    cut = split(b.build(), Group(rows=2, rules=dict.fromkeys(range(3), ("row",))), 2)
    names = [t.name for t in cut.graph.tensors]
    assert {op.name: [names[t] for t in op.reuses] for op in cut.graph.ops if op.reuses} == {
        "relu[0:1]": ["a[0:1]"],
        "relu[1:2]": ["a[1:2]"],
        "square[1:2]": ["s[:1]"],
    }


def test_the_last_piece_has_the_rest_of_the_rows() -> None:
    graph = DFGraph.from_nodes(cost=[10], size=[10], deps=[[]], outputs=[])
    group = Group(rows=10, rules={0: ("row",)}, fixed_costs={0: 5})
    cut = split(graph, group, 4)
    assert cut.rows == (range(3), range(3, 6), range(6, 9), range(9, 10))
    assert [op.cost for op in cut.graph.ops] == [6.5, 6.5, 6.5, 5.5]
    assert [t.size for t in cut.graph.tensors] == [3, 3, 3, 1]
    assert len(split(graph, group, 6).rows) == 5  # of two rows each


GRAPH = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]], names=["a", "b"])


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"rows": 0, "rules": {0: ("row",)}}, "rows is 0, must be at least 1"),
        ({"rows": 4, "rules": {}}, "no ops; give at least one rule"),
        ({"rows": 4, "rules": {0: ()}}, "op 0 has no rule, so nothing of it is cut; leave it out"),
        ({"rows": 4, "rules": {0: ("column",)}}, "op 0 has the rule 'column', must be 'row' or 'sum'"),
        ({"rows": 4, "rules": {0: ("row",)}, "fixed_costs": {1: 1}}, "op 1, which has no rule"),
        ({"rows": 4, "rules": {0: ("row",)}, "barrier": 0}, "the barrier, op 0, has a rule"),
        ({"rows": 4, "rules": {2: ("row",)}}, "it has op 2, but there are 2 ops"),
        ({"rows": 4, "rules": {0: ("row",)}, "barrier": 2}, "it has op 2, but there are 2 ops"),
        ({"rows": 4, "rules": {0: ("row", "sum")}}, "op 0 'a' makes 1 tensors, but has 2 rules"),
        ({"rows": 4, "rules": {1: ("row",)}, "fixed_costs": {1: 2}}, "op 1 'b' has the fixed cost 2"),
    ],
)
def test_a_group_that_does_not_fit_is_refused(group: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        split(GRAPH, Group(**group), 2)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (0, "0 pieces of 4 rows; give a number from 1 to 4"),
        (5, "5 pieces of 4 rows; give a number from 1 to 4"),
        ([], r"pieces of \[\] rows; each needs one, and 4 together"),
        ([1, 2], r"pieces of \[1, 2\] rows"),
        ([4, 0], r"pieces of \[4, 0\] rows"),
    ],
)
def test_pieces_that_do_not_fit_the_rows_are_refused(pieces: int | list[int], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        split(GRAPH, Group(rows=4, rules={0: ("row",)}), pieces)

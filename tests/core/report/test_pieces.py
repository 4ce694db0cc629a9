"""Pieces of an op are that op, with several runs: in explanations, reports and pictures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from checkmate import DFGraph, Op, Problem, Schedule, Solution, Tensor, Timeline, simulate
from checkmate.problem.explanation import explanation
from checkmate.problem.reading import Reading
from checkmate.report import (
    WHOLE,
    Account,
    Kind,
    PieceOf,
    Pieces,
    graph_dot,
    html_report,
    peak_report,
    perfetto_trace,
    plot_plan,
)
from checkmate.testing.strategies import graphs, valid_schedules

from .test_dot import read
from .test_perfetto import of

Cut = tuple[Timeline, Pieces]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """A judged schedule of a graph, some of whose ops are pieces of up to three ops."""
    graph = draw(graphs(min_ops=2))
    owners = draw(st.lists(st.sampled_from([None, *"abc"]), min_size=graph.n_ops, max_size=graph.n_ops))
    pieces: list[PieceOf | None] = []
    for v, owner in enumerate(owners):
        index, count = owners[:v].count(owner), owners.count(owner)
        pieces.append(None if owner is None else PieceOf(name=owner, index=index, count=count))
    timeline = simulate(graph, draw(valid_schedules(graph)))
    return timeline, Pieces(of=tuple(pieces), plain_cost=graph.ideal_cost / 2)


def loss_in_halves() -> Cut:
    """Forward a (4 bytes a half) and b, which adds up into one buffer; both are recomputed for c."""
    ops = (
        Op(name="a", inputs=(0,), outputs=(1,), cost=1.0),
        Op(name="a", inputs=(0,), outputs=(2,), cost=1.0),
        Op(name="b", inputs=(1,), outputs=(3,), cost=2.0),
        Op(name="b", inputs=(2, 3), outputs=(4,), cost=2.0, reuses=(3,)),
        Op(name="p", inputs=(4,), outputs=(5,), cost=4.0, workspace=20),
        Op(name="c", inputs=(1, 2, 4, 5), outputs=(6,), cost=4.0, backward=True),
    )
    graph = DFGraph(
        ops=ops,
        tensors=tuple(Tensor(name=n, size=s) for n, s in zip("xyzuvwg", (1, 4, 4, 8, 8, 2, 1), strict=True)),
        inputs=(0,),
        outputs=(6,),
        cost_unit="s",
    )
    halves = [PieceOf(name=name, index=k, count=2) for name in "ab" for k in (0, 1)]
    schedule = Schedule.from_sequence(graph, [0, 2, 1, 3, 4, 0, 1, 2, 3, 5])
    return simulate(graph, schedule), Pieces(of=(*halves, None, None), plain_cost=10.0)


@given(cuts())
def test_all_runs_and_costs_are_in_the_rows(cut: Cut) -> None:
    timeline, pieces = cut
    rows = explanation(timeline, pieces=pieces).rows
    runs = np.maximum(timeline.runs - 1, 0)
    assert sum(row.again for row in rows) == runs.sum()
    assert sum(row.paid for row in rows) == pytest.approx(runs @ timeline.graph.costs)
    groups = {ops[0]: ops for ops in pieces.whole_ops(timeline.graph)}
    assert sorted(v for ops in groups.values() for v in ops) == [*range(timeline.graph.n_ops)]
    for row in rows:
        piece = pieces.piece(row.index)
        assert row.op == (timeline.graph.ops[row.index].name if piece is None else piece.name)
        assert row.pieces == (1 if piece is None else piece.count)
        assert row.times == pytest.approx(timeline.runs[[*groups[row.index]]].mean())


@given(cuts())
def test_bytes_saved_are_those_away_at_one_time(cut: Cut) -> None:
    """A copy is away from the end of one stay to the start of the next one that is used."""
    timeline, pieces = cut
    graph, reading = timeline.graph, Reading(timeline)
    stays = [*zip(*(column.tolist() for column in reading.stays), strict=True)]
    for row in explanation(reading, pieces=pieces).rows:
        ops = next(ops for ops in pieces.whole_ops(graph) if ops[0] == row.index)
        over = {t for v in ops for t in graph.ops[v].reuses} if len(ops) > 1 else set()
        away = np.zeros(len(reading.ops), dtype=np.int64)
        for t in {t for v in ops for t in graph.ops[v].outputs} - over:
            mine = [(first, end, used) for u, first, end, used in stays if u == t]
            for (_, left, _), (back, _, used) in pairwise(mine):
                away[left:back] += graph.tensors[t].size if used else 0
        assert row.size == away.max()
        assert row.saved == away[reading.peak_run]
        if row.size:
            assert row.without == (away + reading.memory)[away > 0].max()


@given(cuts())
def test_an_op_in_one_piece_is_an_op(cut: Cut) -> None:
    timeline, _ = cut
    alone = tuple(PieceOf(name=f"op {v}", index=0, count=1) for v in range(timeline.graph.n_ops))
    rows = explanation(timeline, pieces=Pieces(of=alone)).rows
    known = explanation(timeline).rows
    assert [(row.index, row.size, row.without, row.reason) for row in rows] == [
        (row.index, row.size, row.without, row.reason) for row in known
    ]
    assert not WHOLE
    assert WHOLE.overhead(timeline) == timeline.overhead


def test_halves_known_by_hand() -> None:
    timeline, pieces = loss_in_halves()
    first, second = explanation(timeline, 1000, ["head"] * 6, pieces).rows
    assert (first.op, first.pieces, first.times, first.again, first.paid) == ("b", 2, 2.0, 2, 4.0)
    assert (second.op, second.pieces, second.size, second.saved) == ("a", 2, 8, 8)
    assert first.size == 8  # the second piece writes over what the first one made
    text = str(explanation(timeline, 1000, ["head"] * 6, pieces)).splitlines()
    assert text[1].split()[:7] == ["b", "in", "2", "pieces", "head", "2×", "8"]


def test_extra_cost_is_that_over_the_step_without_pieces(tmp_path: Path) -> None:
    timeline, pieces = loss_in_halves()
    solution = Solution.found(Problem(graph=timeline.graph, budget=timeline.peak), timeline.schedule)
    account = Account(kinds=(Kind.ACTIVATIONS,) * timeline.graph.n_tensors)
    cut = replace(solution, pieces=pieces)
    report = peak_report(cut, account)
    assert report.overhead == timeline.cost / 10.0 - 1 == 1.0
    assert "feasible for these pieces" in str(report)
    assert "for these pieces" not in str(peak_report(solution, account))
    html_report(cut, tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text()
    for part in (
        "4 ops, 2 of them in pieces: 6 with each piece,",
        "<dd>100.00%</dd>",
        "<dt>gap for these pieces</dt>",
    ):
        assert part in page
    assert "b  in 2 pieces" in page


@given(cuts())
def test_an_op_in_pieces_is_one_node_of_a_graph(cut: Cut) -> None:
    timeline, pieces = cut
    graph = timeline.graph
    nodes, edges = read(graph_dot(graph, timeline=timeline, pieces=pieces))
    owner = {v: f"v{ops[0]}" for ops in pieces.whole_ops(graph) for v in ops}
    assert {name for name in nodes if name[0] == "v"} == {*owner.values()}
    made_by = graph.producer.tolist()
    reads = {(owner.get(made_by[t], f"t{t}"), owner[v]) for v, op in enumerate(graph.ops) for t in op.inputs}
    assert {edge for edge in edges if edge[1][0] == "v"} == {(a, b) for a, b in reads if a != b}


def test_halves_as_a_graph() -> None:
    timeline, pieces = loss_in_halves()
    text = graph_dot(timeline.graph, timeline=timeline, pieces=pieces)
    nodes, _ = read(text)
    assert nodes["v2"] == '"b\\n4 s\\n2 pieces\\n4 runs of 2 ops", fillcolor="#f6c79b"'
    assert 'v0 -> v2 [label="2 tensors\\n8 B"];' in text


@given(cuts())
def test_pieces_are_runs_of_one_name_in_a_trace(cut: Cut) -> None:
    timeline, pieces = cut
    for event in of(perfetto_trace(timeline, pieces=pieces), "X"):
        piece = pieces.piece(event["args"]["op"])
        if piece is None:
            assert "piece" not in event["args"]
        else:
            assert event["name"] == piece.name
            assert event["args"]["piece"] == f"{piece.index + 1} of {piece.count}"


def test_pieces_have_one_column_of_r(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    timeline, pieces = loss_in_halves()
    plot_plan(timeline, tmp_path / "plan.png", pieces=pieces)
    first, again = (image.get_array()[..., 3] > 0 for image in figures[0].axes[0].images)
    assert first.sum(axis=0).tolist() == [2, 2, 1, 1]
    assert again.any(axis=0).tolist() == [True, True, False, False]

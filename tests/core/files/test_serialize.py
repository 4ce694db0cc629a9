"""Wire formats: round trips, and untrusted files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import (
    Compute,
    DFGraph,
    FormatError,
    Free,
    GraphError,
    Schedule,
    read_graph,
    read_schedule,
    write_graph,
    write_schedule,
)
from checkmate.files.serialize import graph_bytes, read_schedule_with_meta, schedule_bytes
from checkmate.files.wire import Encoding
from checkmate.testing.strategies import graphs, schedules

ENCODINGS: tuple[Encoding, ...] = ("json", "msgpack")


def tiny() -> dict[str, Any]:
    """A small graph that uses every field."""
    return {
        "format": "checkmate.graph",
        "version": 1,
        "tensors": [{"name": "x", "size": 4}, {"name": "y", "size": 8}],
        "ops": [{"name": "f", "inputs": [0], "outputs": [1], "cost": 1.5}],
        "inputs": [0],
        "outputs": [1],
    }


def edited(place: str, value: Any) -> bytes:
    """The tiny graph with one value replaced; ``place`` is like ``ops.0.cost``."""
    graph = tiny()
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    target: Any = graph
    for part in path:
        target = target[part]
    target[last] = value
    return json.dumps(graph).encode()


@given(graph=graphs(), encoding=st.sampled_from(ENCODINGS))
def test_a_graph_survives_the_wire(graph: DFGraph, encoding: Encoding) -> None:
    copy = read_graph(graph_bytes(graph, format=encoding))
    assert copy == graph
    assert (copy.name, copy.digest) == (graph.name, graph.digest)


@given(data=st.data())
def test_a_schedule_survives_the_wire(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    hints = {"solver": "me", "bound": float("inf"), "origin": {"a": [1, 0.5, True]}}
    content = schedule_bytes(schedule, graph, hints, format=data.draw(st.sampled_from(ENCODINGS)))
    assert read_schedule(content, graph) == schedule
    assert read_schedule_with_meta(content, graph) == (schedule, hints | {"bound": None})


def test_files(tmp_path: Path) -> None:
    graph = read_graph(json.dumps(tiny()).encode())
    schedule = Schedule.of([Compute(0), Free(0)])
    write_graph(tmp_path / "graph.json", graph)
    write_schedule(tmp_path / "schedule.json", schedule, graph, {"bound": float("inf"), "budget": 12})
    assert read_graph(str(tmp_path / "graph.json")) == graph
    assert read_schedule(tmp_path / "schedule.json", graph) == schedule
    wire = json.loads((tmp_path / "schedule.json").read_text())
    assert wire == {
        "format": "checkmate.schedule",
        "version": 1,
        "graph": graph.digest,
        "steps": [["compute", 0], ["free", 0]],
        "meta": {"bound": None, "budget": 12},
    }
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        read_graph(tmp_path / "none.json")


def test_the_name_chooses_the_encoding_of_a_writer_and_the_content_that_of_a_reader(tmp_path: Path) -> None:
    graph = read_graph(json.dumps(tiny()).encode())
    schedule = Schedule.of([Compute(0)])
    for name, encoding, first in [
        ("a.json", None, b"{"),
        ("a.msgpack", None, b"\x86"),
        ("a.MSGPACK", None, b"\x86"),
        ("a", None, b"{"),
        ("b.json", "msgpack", b"\x86"),
        ("b.msgpack", "json", b"{"),
    ]:
        write_graph(tmp_path / name, graph, format=encoding)  # type: ignore[arg-type]
        assert (tmp_path / name).read_bytes()[:1] == first
        assert read_graph(tmp_path / name) == graph
        write_schedule(tmp_path / name, schedule, graph, format=encoding)  # type: ignore[arg-type]
        assert read_schedule(tmp_path / name, graph) == schedule
    with pytest.raises(FormatError, match="unknown encoding 'yaml'"):
        graph_bytes(graph, format="yaml")  # type: ignore[arg-type]


def test_the_largest_sizes_survive() -> None:
    graph = DFGraph.from_nodes(cost=[5e-324, 1e299], size=[1, 2], deps=[[], [0]], fixed_size=2**63 - 7)
    for encoding in ENCODINGS:
        assert read_graph(graph_bytes(graph, format=encoding)) == graph


@pytest.mark.slow
def test_twenty_thousand_ops_survive() -> None:
    n = 20_000
    graph = DFGraph.from_nodes(cost=[1.5e-4] * n, size=[4096] * n, deps=[[], *([i] for i in range(n - 1))])
    for encoding in ENCODINGS:
        assert read_graph(graph_bytes(graph, format=encoding)).digest == graph.digest


def test_text_that_is_no_unicode_can_not_be_written() -> None:
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], name="half \ud800")
    for encoding in ENCODINGS:
        with pytest.raises(FormatError, match=r"'half .*can't be written: surrogates not allowed"):
            graph_bytes(graph, format=encoding)
        with pytest.raises(FormatError, match="can't be written"):
            schedule_bytes(Schedule.of([Compute(0)]), graph, {"by": "\udfff"}, format=encoding)


def test_defaults_may_be_left_out_and_are_left_out() -> None:
    graph = read_graph(json.dumps(tiny()).encode())
    op = graph.ops[0]
    assert (op.workspace, op.recomputable, op.backward, graph.fixed_size, graph.cost_unit) == (
        0,
        True,
        False,
        0,
        "",
    )
    assert json.loads(graph_bytes(graph)) == tiny()


def test_unknown_keys_are_ignored() -> None:
    plain = read_graph(json.dumps(tiny()).encode())
    for place in ("hint", "ops.0.hint", "tensors.1.hint"):
        assert read_graph(edited(place, {"any": ["thing"]})) == plain


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("ops.0.cost", -1.0, r"\$\.ops\[0\]\.cost"),
        ("ops.0.cost", "1", r"\$\.ops\[0\]\.cost"),
        ("ops.0.cost", None, r"\$\.ops\[0\]\.cost"),
        ("ops.0.workspace", -1, r"\$\.ops\[0\]\.workspace"),
        ("ops.0.workspace", 2**63, r"\$\.ops\[0\]\.workspace"),
        ("ops.0.recomputable", 1, r"\$\.ops\[0\]\.recomputable"),
        ("ops.0.inputs", [-1], r"\$\.ops\[0\]\.inputs\[0\]"),
        ("ops.0.inputs", 0, r"\$\.ops\[0\]\.inputs"),
        ("ops.0", {"name": "f"}, r"required field `inputs` - at `\$\.ops\[0\]`"),
        ("tensors.1.size", -8, r"\$\.tensors\[1\]\.size"),
        ("tensors.1.size", 8.5, r"\$\.tensors\[1\]\.size"),
        ("tensors.1.size", 8.0, r"\$\.tensors\[1\]\.size"),
        ("tensors.1.size", True, r"\$\.tensors\[1\]\.size"),
        ("tensors.1.size", 2**70, r"\$\.tensors\[1\]\.size"),
        ("tensors.1.name", 5, r"\$\.tensors\[1\]\.name"),
        ("fixed_size", -1, r"\$\.fixed_size"),
        ("version", 2, r"version 2 .* upgrade checkmate-core - at `\$\.version`"),
        ("version", "1", r"\$\.version"),
        ("format", "checkmate.schedule", r"'checkmate.schedule', not a 'checkmate.graph' - at `\$\.format`"),
        ("format", None, r"\$\.format"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(place: str, value: Any, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        read_graph(edited(place, value))


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("ops.0.inputs", [2], r"\$\.ops\[0\] .*inputs has the index 2"),
        ("ops.0.inputs", [1], r"\$\.ops\[0\] .*a cycle"),
        ("ops.0.inputs", [0, 0], r"\$\.ops\[0\] .*twice"),
        ("ops.0.outputs", [], r"\$\.tensors\[1\] .*no producer"),
        ("ops.0.outputs", [0, 1], r"\$\.ops\[0\] .*graph input or has another producer"),
        ("outputs", [9], r"\$\.outputs has the index 9"),
        ("tensors.1.size", 2**63 - 1, r"\$\.tensors: .* less than 2\^63"),
        ("ops.0.cost", 1.7e308, r"\$\.ops\[0\] .*cost is 1.7e\+308"),
    ],
)
def test_a_graph_that_can_not_be_is_named_by_its_place(place: str, value: Any, complaint: str) -> None:
    with pytest.raises(GraphError, match=complaint):
        read_graph(edited(place, value))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_cost_that_is_no_number_is_rejected(number: str) -> None:
    content = json.dumps(tiny()).replace("1.5", number).encode()
    with pytest.raises(FormatError):
        read_graph(content)


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"{}", b"\xff\xfe{}", b"[" * 10_000, b'{"format": "\xff", "version": 1}', b"{} {}"],
)
def test_other_objects_than_graphs_are_rejected(content: bytes) -> None:
    with pytest.raises(FormatError, match="<bytes>"):
        read_graph(content)


def test_every_truncation_is_rejected() -> None:
    whole = json.dumps(tiny()).encode()
    for end in range(len(whole)):
        with pytest.raises(FormatError):
            read_graph(whole[:end])


def test_a_schedule_of_another_graph_is_refused() -> None:
    graph = read_graph(json.dumps(tiny()).encode())
    other = read_graph(edited("ops.0.cost", 2.5))
    with pytest.raises(FormatError, match="of another graph"):
        read_schedule(schedule_bytes(Schedule.of([Compute(0)]), other), graph)


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([["compute", -1]], r"\$\.steps\[0\]\[1\]"),
        ([["compute", 0], ["evict", 0]], r"\$\.steps\[1\]\[0\]"),
        ([["compute"]], r"\$\.steps\[0\]"),
        ([["free", 2**63]], r"\$\.steps\[0\]\[1\]"),
        ("compute", r"\$\.steps"),
    ],
)
def test_a_wrong_step_is_named_by_its_place(steps: Any, complaint: str) -> None:
    graph = read_graph(json.dumps(tiny()).encode())
    wire = {"format": "checkmate.schedule", "version": 1, "graph": graph.digest, "steps": steps}
    with pytest.raises(FormatError, match=complaint):
        read_schedule(json.dumps(wire).encode(), graph)


def test_arguments_in_the_wrong_order_are_an_error(tmp_path: Path) -> None:
    graph = read_graph(json.dumps(tiny()).encode())
    with pytest.raises(TypeError, match="the path comes first"):
        write_graph(graph, tmp_path / "graph.json")  # type: ignore[arg-type]


WHOLE = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
STEPS = Schedule.from_sequence(WHOLE, [0, 1])


def test_a_stream_is_read_and_called_by_its_name(tmp_path: Path) -> None:
    content = graph_bytes(WHOLE)
    assert read_graph(io.BytesIO(content)) == WHOLE
    (tmp_path / "graph").write_bytes(content[:-1])
    with (tmp_path / "graph").open("rb") as stream, pytest.raises(FormatError, match="graph: Input data"):
        read_graph(stream)


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_large_file_is_read_only_with_a_raised_limit(tmp_path: Path, kind: str) -> None:
    whole, steps = graph_bytes(WHOLE), schedule_bytes(STEPS, WHOLE)

    def source(content: bytes) -> Path | io.BytesIO:
        (tmp_path / "file").write_bytes(content)
        return tmp_path / "file" if kind == "file" else io.BytesIO(content)

    assert read_graph(source(whole), max_size=len(whole)) == WHOLE
    assert read_schedule(source(steps), WHOLE, max_size=len(steps)) == STEPS
    with pytest.raises(FormatError, match="more than the"):
        read_graph(source(whole), max_size=len(whole) - 1)
    with pytest.raises(FormatError, match="more than the"):
        read_schedule(source(steps), WHOLE, max_size=len(steps) - 1)

"""The graph as DOT: read back by a small reader of our own, and by Graphviz where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given

from checkmate import DFGraph, GraphError, Timeline
from checkmate.report.dot import GraphPicture, graph_dot

from .judged import by_hand, hostile, large, timelines

STRING = r'"(?:[^"\\]|\\.)*"'
NODE = re.compile(rf"^\s*([vto]\d+) \[label=({STRING})((?:, \w+={STRING})*)\];$")
EDGE = re.compile(rf"^\s*([vto]\d+) -> ([vto]\d+) \[label=({STRING})\];$")
OTHER = re.compile(
    rf'^(digraph {STRING} \{{|\}}|  \}}|  subgraph "cluster_\w+" \{{ label={STRING}; color={STRING};'
    rf"|  \w+=\"TB\"; node \[.*\];|  edge \[.*\];)$"
)


def read(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Nodes with their attributes, and edges; a line that is neither, nor known, fails."""
    nodes: dict[str, str] = {}
    edges = []
    for line in text.splitlines():
        if node := NODE.match(line):
            assert node[1] not in nodes
            nodes[node[1]] = node[2] + node[3]
        elif edge := EDGE.match(line):
            edges.append((edge[1], edge[2]))
        else:
            assert OTHER.match(line), line
    return nodes, edges


@given(timelines())
def test_ops_inputs_outputs_are_nodes_and_reads_are_edges(timeline: Timeline) -> None:
    graph = timeline.graph
    nodes, edges = read(graph_dot(graph, timeline=timeline))
    made = [t for t in graph.outputs if t not in graph.inputs]
    assert set(nodes) == (
        {f"v{v}" for v in range(graph.n_ops)} | {f"t{t}" for t in graph.inputs} | {f"o{t}" for t in made}
    )
    source = [f"v{v}" if v >= 0 else f"t{t}" for t, v in enumerate(graph.producer.tolist())]
    reads = [(source[t], f"v{v}") for v, op in enumerate(graph.ops) for t in op.inputs]
    assert sorted(edges) == sorted(reads + [(source[t], f"o{t}") for t in made])
    for v, runs in enumerate(timeline.runs.tolist()):
        assert (f"runs {runs} times" in nodes[f"v{v}"]) == (runs != 1)


def test_known_by_hand() -> None:
    nodes, _ = read(graph_dot(by_hand().graph, timeline=by_hand()))
    assert nodes["v0"] == '"a\\n2 s\\nruns 2 times", fillcolor="#f6c79b"'
    assert nodes["v2"] == '"c\\n1 s\\nworkspace 20 B", fillcolor="#dff0d8"'
    assert "runs" not in "".join(read(graph_dot(by_hand().graph))[0].values())


def test_any_names_stay_text() -> None:
    nodes, edges = read(graph_dot(hostile().graph, timeline=hostile()))
    assert (len([n for n in nodes if n[0] == "v"]), len(edges)) == (6, 6)
    assert "\\\"'`\\\\N\\\\\\\\ &amp;amp; ]]&gt;".replace("&gt;", ">") in nodes["v2"]


def test_a_graph_too_large_to_draw_is_refused(tmp_path: Path) -> None:
    timeline = large(1001)
    with pytest.raises(GraphError, match=r"2002 ops.*max_ops=None"):
        GraphPicture().write(timeline, tmp_path / "g.dot")
    assert not (tmp_path / "g.dot").exists()
    assert len(read(graph_dot(timeline.graph, timeline=timeline, max_ops=None))[0]) == 2003


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
@pytest.mark.parametrize("timeline", [by_hand(), hostile(), None], ids=["by hand", "hostile", "empty"])
def test_graphviz_reads_it(tmp_path: Path, timeline: Timeline | None) -> None:
    graph = timeline.graph if timeline else DFGraph.from_nodes(cost=[], size=[], deps=[])
    text = graph_dot(graph, timeline=timeline)
    done = subprocess.run(
        ["dot", "-Tplain"], input=text.encode(), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().count("\nnode ") == len(read(text)[0])

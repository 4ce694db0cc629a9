"""A graph in the DOT language of Graphviz: ops are nodes, each read of a tensor is an edge with its bytes.

Forward and backward ops are a cluster each; graph inputs and outputs are nodes of their own. With a schedule,
recomputed ops are coloured and labelled with their number of runs. Language: graphviz.org/doc/info/lang.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checkmate.errors import GraphError
from checkmate.files.disk import replace_file
from checkmate.model.graph import DFGraph
from checkmate.simulate import Timeline
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes

__all__ = ["GraphPicture", "graph_dot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPicture:
    """The exporter of :func:`graph_dot`."""

    def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
        """Write the graph with its recomputed ops; the budget is ignored."""
        replace_file(file, graph_dot(timeline.graph, timeline=timeline).encode())


def graph_dot(graph: DFGraph, *, timeline: Timeline | None = None, max_ops: int | None = 2000) -> str:
    """The graph as DOT text, for ``dot -Tsvg``.

    Args:
        graph: the graph.
        timeline: its recomputed ops are coloured; None = no colours.
        max_ops: the largest graph that is accepted: Graphviz needs minutes for larger ones, and the picture
            is illegible. None = no limit.

    Raises:
        GraphError: if the graph has more than ``max_ops`` ops.

    >>> chain = DFGraph.from_nodes(cost=[1, 1], size=[4096, 8], deps=[[], [0]], names=["conv", "relu"])
    >>> "v0 -> v1" in graph_dot(chain)
    True
    """
    if max_ops is not None and graph.n_ops > max_ops:
        raise GraphError(
            f"the graph has {graph.n_ops} ops, more than the {max_ops} that Graphviz lays out in reasonable "
            "time: export as html or perfetto, or call graph_dot(graph, max_ops=None)"
        )
    lines = [
        f"digraph {_quoted(graph.name or 'graph')} {{",
        '  rankdir="TB"; node [fontname="sans-serif", fontsize="10", shape="box", style="rounded,filled"];',
        '  edge [fontname="sans-serif", fontsize="8", color="#777777"];',
    ]
    for backward, name, colour in ((False, "forward", "#dbe8f4"), (True, "backward", "#dff0d8")):
        members = [v for v, op in enumerate(graph.ops) if op.backward == backward]
        if members:
            lines.append(f'  subgraph "cluster_{name}" {{ label="{name}"; color="#bbbbbb";')
            lines += (_op_line(graph, v, timeline, colour) for v in members)
            lines.append("  }")
    return "\n".join([*lines, *_tensor_lines(graph), "}", ""])


def _op_line(graph: DFGraph, v: int, timeline: Timeline | None, colour: str) -> str:
    op, runs = graph.ops[v], int(timeline.runs[v]) if timeline is not None else 1
    rows = [clipped(op.name), cost_text(op.cost, graph.cost_unit)]
    if op.workspace:
        rows.append(f"workspace {format_bytes(op.workspace)}")
    if not op.recomputable:
        rows.append("runs only once")
    if runs != 1:
        rows.append(f"runs {runs} times")
        colour = "#f6c79b" if runs else "#ffffff"
    return f'    v{v} [label={_quoted(*rows)}, fillcolor="{colour}"];'


def _tensor_lines(graph: DFGraph) -> Iterator[str]:
    """Graph inputs and outputs as nodes; every read as an edge."""
    for t in graph.inputs:
        label = _quoted(clipped(graph.tensors[t].name), format_bytes(graph.tensors[t].size))
        yield f'  t{t} [label={label}, shape="ellipse", fillcolor="#eeeeee"];'
    producer = graph.producer.tolist()
    source = [f"v{v}" if v >= 0 else f"t{t}" for t, v in enumerate(producer)]
    for v, op in enumerate(graph.ops):
        for t in op.inputs:
            yield f"  {source[t]} -> v{v} [label={_edge_label(graph, t)}];"
    for t in graph.outputs:
        if producer[t] >= 0:
            label = _quoted(clipped(graph.tensors[t].name))
            yield f'  o{t} [label={label}, shape="ellipse", style="bold"];'
            yield f"  {source[t]} -> o{t} [label={_edge_label(graph, t)}];"


def _edge_label(graph: DFGraph, t: int) -> str:
    return _quoted(clipped(graph.tensors[t].name, 30), format_bytes(graph.tensors[t].size))


def _quoted(*rows: str) -> str:
    r"""Rows of a label as one quoted string; quotes, escapes and HTML entities in them are literal."""
    safe = (row.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for row in rows)
    return '"' + "\\n".join(safe) + '"'

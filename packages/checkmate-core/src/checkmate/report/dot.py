"""A graph in the DOT language of Graphviz: ops are nodes, each read of a tensor is an edge with its bytes.

Forward and backward ops are a cluster each; graph inputs and outputs are nodes of their own. With a schedule,
recomputed ops are coloured and labelled with their number of runs. The pieces of an op are one node, and all
that another node passes to them, or they to it, is one edge. Language: graphviz.org/doc/info/lang.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkmate.errors import GraphError
from checkmate.files.disk import replace_file
from checkmate.model.graph import DFGraph
from checkmate.problem.pieces import WHOLE, Pieces
from checkmate.simulate import Timeline
from checkmate.text.printable import clipped, cost_text
from checkmate.units import format_bytes

__all__ = ["GraphPicture", "graph_dot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPicture:
    """The exporter of :func:`graph_dot`."""

    def write(
        self, timeline: Timeline, file: Path, *, budget: int | None = None, pieces: Pieces = WHOLE
    ) -> None:
        """Write the graph with its recomputed ops; the budget is ignored."""
        replace_file(file, graph_dot(timeline.graph, timeline=timeline, pieces=pieces).encode())


def graph_dot(
    graph: DFGraph,
    *,
    timeline: Timeline | None = None,
    max_ops: int | None = 2000,
    pieces: Pieces = WHOLE,
) -> str:
    """The graph as DOT text, for ``dot -Tsvg``.

    Args:
        graph: the graph.
        timeline: its recomputed ops are coloured; None = no colours.
        max_ops: the largest graph that is accepted: Graphviz needs minutes for larger ones, and the picture
            is illegible. None = no limit. The pieces of an op count once.
        pieces: ops that are pieces of one op.

    Raises:
        GraphError: if the graph has more than ``max_ops`` ops.

    >>> chain = DFGraph.from_nodes(cost=[1, 1], size=[4096, 8], deps=[[], [0]], names=["conv", "relu"])
    >>> "v0 -> v1" in graph_dot(chain)
    True
    """
    nodes = pieces.whole_ops(graph)
    if max_ops is not None and len(nodes) > max_ops:
        raise GraphError(
            f"the graph has {len(nodes)} ops, more than the {max_ops} that Graphviz lays out in reasonable "
            "time: export as html or perfetto, or call graph_dot(graph, max_ops=None)"
        )
    lines = [
        f"digraph {_quoted(graph.name or 'graph')} {{",
        '  rankdir="TB"; node [fontname="sans-serif", fontsize="10", shape="box", style="rounded,filled"];',
        '  edge [fontname="sans-serif", fontsize="8", color="#777777"];',
    ]
    for backward, name, colour in ((False, "forward", "#dbe8f4"), (True, "backward", "#dff0d8")):
        members = [ops for ops in nodes if graph.ops[ops[0]].backward == backward]
        if members:
            lines.append(f'  subgraph "cluster_{name}" {{ label="{name}"; color="#bbbbbb";')
            lines += (_op_line(graph, ops, timeline, colour, pieces) for ops in members)
            lines.append("  }")
    return "\n".join([*lines, *_tensor_lines(graph, nodes), "}", ""])


def _op_line(
    graph: DFGraph, members: Sequence[int], timeline: Timeline | None, colour: str, pieces: Pieces
) -> str:
    ops, piece = [graph.ops[v] for v in members], pieces.piece(members[0])
    rows = [clipped(ops[0].name if piece is None else piece.name)]
    rows.append(cost_text(sum(op.cost for op in ops), graph.cost_unit))
    if workspace := max(op.workspace for op in ops):
        rows.append(f"workspace {format_bytes(workspace)}")
    if not all(op.recomputable for op in ops):
        rows.append("runs only once")
    runs = [1] if timeline is None else timeline.runs[[*members]].tolist()
    if piece is not None:
        rows.append(f"{piece.count} pieces")
    if set(runs) != {1}:
        rows.append(f"runs {sum(runs)} times" if len(runs) == 1 else f"{sum(runs)} runs of {len(runs)} ops")
        colour = "#f6c79b" if any(runs) else "#ffffff"
    return f'    v{members[0]} [label={_quoted(*rows)}, fillcolor="{colour}"];'


def _tensor_lines(graph: DFGraph, nodes: Sequence[Sequence[int]]) -> Iterator[str]:
    """Graph inputs and outputs as nodes; every read as an edge."""
    for t in graph.inputs:
        label = _quoted(clipped(graph.tensors[t].name), format_bytes(graph.tensors[t].size))
        yield f'  t{t} [label={label}, shape="ellipse", fillcolor="#eeeeee"];'
    node = {v: ops for ops in nodes for v in ops}
    producer = graph.producer.tolist()
    source = [f"v{node[v][0]}" if v >= 0 else f"t{t}" for t, v in enumerate(producer)]
    for ops in nodes:
        joined: dict[str, set[int]] = {}  # the tensors on an edge from or to pieces
        for t in (t for v in ops for t in graph.ops[v].inputs):
            made_by = node.get(producer[t], ())
            if max(len(ops), len(made_by)) == 1:
                yield f"  {source[t]} -> v{ops[0]} [label={_edge_label(graph, t)}];"
            elif made_by != ops:
                joined.setdefault(source[t], set()).add(t)
        for start, tensors in joined.items():
            yield f"  {start} -> v{ops[0]} [label={_edge_label(graph, *tensors)}];"
    for t in graph.outputs:
        if producer[t] >= 0:
            label = _quoted(clipped(graph.tensors[t].name))
            yield f'  o{t} [label={label}, shape="ellipse", style="bold"];'
            yield f"  {source[t]} -> o{t} [label={_edge_label(graph, t)}];"


def _edge_label(graph: DFGraph, *tensors: int) -> str:
    name = clipped(graph.tensors[tensors[0]].name, 30) if len(tensors) == 1 else f"{len(tensors)} tensors"
    return _quoted(name, format_bytes(sum(graph.tensors[t].size for t in tensors)))


def _quoted(*rows: str) -> str:
    r"""Rows of a label as one quoted string; quotes, escapes and HTML entities in them are literal."""
    safe = (row.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for row in rows)
    return '"' + "\\n".join(safe) + '"'

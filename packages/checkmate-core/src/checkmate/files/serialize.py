"""The wire formats, version 1: a graph or a schedule as one JSON or msgpack object, for any language.

:mod:`checkmate.files.wire` defines the formats; this module converts graphs and schedules to and from them. A
file that breaks a format raises an error that names the file and the place, as ``$.ops[3].cost``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np

from checkmate.errors import FormatError, GraphError
from checkmate.files.disk import MAX_SIZE, read_file, read_stream, replace_file
from checkmate.files.wire import Encoding, GraphV1, OpV1, ScheduleV1, TensorV1, decoded, encoded, json_schemas
from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.model.schedule import Schedule
from checkmate.text.printable import excerpt, printable

__all__ = [
    "graph_bytes",
    "json_schemas",
    "read_graph",
    "read_schedule",
    "read_schedule_with_meta",
    "schedule_bytes",
    "write_graph",
    "write_schedule",
]

Source = bytes | str | os.PathLike[str] | BinaryIO
"""The argument of a reader: the content as bytes, the path of a file, or an open binary stream such as
``sys.stdin.buffer``. JSON and msgpack are recognised by the content."""


def read_graph(source: Source, *, max_size: int = MAX_SIZE) -> DFGraph:
    """Read a graph.

    Args:
        source: a path, the content as bytes, or an open binary stream.
        max_size: bytes; a larger file or stream is refused.

    Raises:
        FormatError: if it is not a graph of a known version, with the place; if it is larger than
            ``max_size``; if the path names no regular file.
        GraphError: if it is well-formed but not a valid graph (a cycle, a dangling index); names the place.
        OSError: if the file can't be read.

    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]], name="tiny")
    >>> read_graph(graph_bytes(graph)) == graph
    True
    """
    content, where = _content(source, max_size)
    wire = decoded(content, where, GraphV1)
    try:
        return DFGraph(
            ops=tuple(Op(**msgspec.structs.asdict(op)) for op in wire.ops),
            tensors=tuple(Tensor(name=tensor.name, size=tensor.size) for tensor in wire.tensors),
            inputs=wire.inputs,
            outputs=wire.outputs,
            fixed_size=wire.fixed_size,
            cost_unit=wire.cost_unit,
            name=wire.name,
        )
    except GraphError as error:
        is_path = str(error).startswith(("ops", "tensors", "inputs", "outputs", "fixed_size"))
        raise GraphError(f"{where}: {'$.' if is_path else ''}{excerpt(str(error))}") from error


def graph_bytes(graph: DFGraph, *, format: Encoding = "json") -> bytes:
    """The graph in the wire format; as JSON it is one line of UTF-8.

    Raises:
        FormatError: if a name can't be written as UTF-8.
    """
    wire = GraphV1(
        format="checkmate.graph",
        version=1,
        name=graph.name,
        cost_unit=graph.cost_unit,
        fixed_size=graph.fixed_size,
        tensors=tuple(TensorV1(tensor.name, tensor.size) for tensor in graph.tensors),
        ops=tuple(
            OpV1(
                op.name,
                op.inputs,
                op.outputs,
                float(op.cost),
                op.workspace,
                op.recomputable,
                op.backward,
                op.reuses,
            )
            for op in graph.ops
        ),
        inputs=graph.inputs,
        outputs=graph.outputs,
    )
    return encoded(wire, format)


def write_graph(path: str | os.PathLike[str], graph: DFGraph, *, format: Encoding | None = None) -> None:
    """Write the graph to a file; None = as msgpack if its name ends in ``.msgpack``, else as JSON.

    After any failure the file is the old one or the new one, whole.

    Raises:
        FormatError: if a name can't be written as UTF-8.
        OSError: if the file can't be written; names it.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp(), "tiny.json")
    >>> write_graph(file, DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]], name="tiny"))
    >>> read_graph(file)
    <DFGraph 'tiny': 2 ops, 2 tensors>
    """
    if isinstance(path, DFGraph):
        raise TypeError("write_graph(path, graph): the path comes first")
    replace_file(path, graph_bytes(graph, format=format or _encoding_of(path)))


def read_schedule(source: Source, graph: DFGraph, *, max_size: int = MAX_SIZE) -> Schedule:
    """Read a schedule of ``graph``, otherwise as :func:`read_graph`.

    Graphs are compared by digest: names don't count. :func:`checkmate.simulate` says whether it is valid.

    Raises:
        FormatError: if it is not a schedule of a known version, belongs to another graph, or as in
            :func:`read_graph`.
        OSError: if the file can't be read.
    """
    return read_schedule_with_meta(source, graph, max_size=max_size)[0]


def read_schedule_with_meta(
    source: Source, graph: DFGraph, *, max_size: int = MAX_SIZE
) -> tuple[Schedule, dict[str, Any]]:
    """As :func:`read_schedule`, and its ``meta``: hints that are not checked."""
    content, where = _content(source, max_size)
    wire = decoded(content, where, ScheduleV1)
    if wire.graph != graph.digest:
        raise FormatError(
            f"{where}: this schedule is of another graph: its digest is {printable(wire.graph[:12])}…, "
            f"that of {graph!r} is {graph.digest[:12]}… - at `$.graph`"
        )
    codes = [index if kind == "compute" else ~index for kind, index in wire.steps]
    return Schedule(np.array(codes, dtype=np.int64)), wire.meta


def schedule_bytes(
    schedule: Schedule,
    graph: DFGraph,
    meta: Mapping[str, object] | None = None,
    *,
    format: Encoding = "json",
) -> bytes:
    """The schedule in the wire format; as JSON it is one line of UTF-8.

    Args:
        schedule: the schedule.
        graph: the graph that it is for; only its digest is written.
        meta: hints for people and tools, e.g. solver, budget, peak; JSON values. Non-finite floats
            become null.
        format: the encoding.
    """
    codes: list[int] = schedule.codes.tolist()
    steps: list[tuple[Literal["compute", "free"], int]] = [
        ("compute", code) if code >= 0 else ("free", ~code) for code in codes
    ]
    wire = ScheduleV1(
        format="checkmate.schedule",
        version=1,
        graph=graph.digest,
        steps=tuple(steps),
        meta=dict(meta or {}),
    )
    if format == "msgpack":  # so that both encodings hold the same hints
        wire = decoded(encoded(wire, "json"), "<meta>", ScheduleV1)
    return encoded(wire, format)


def write_schedule(
    path: str | os.PathLike[str],
    schedule: Schedule,
    graph: DFGraph,
    meta: Mapping[str, object] | None = None,
    *,
    format: Encoding | None = None,
) -> None:
    """Write the schedule to a file; arguments as in :func:`schedule_bytes` and :func:`write_graph`."""
    replace_file(path, schedule_bytes(schedule, graph, meta, format=format or _encoding_of(path)))


def _encoding_of(path: str | os.PathLike[str]) -> Encoding:
    return "msgpack" if os.fspath(path).lower().endswith(".msgpack") else "json"


def _content(source: Source, max_size: int) -> tuple[bytes, str]:
    """The bytes of a source, and its name in messages."""
    if isinstance(source, bytes):
        return source, "<bytes>"
    if isinstance(source, str | os.PathLike):
        return read_file(source, max_size=max_size), excerpt(os.fspath(source))
    name = excerpt(str(getattr(source, "name", "<stream>")))
    return read_stream(source, name, max_size=max_size), name

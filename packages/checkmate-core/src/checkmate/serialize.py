"""The wire formats, version 1: a graph or a schedule as one JSON object, for any language.

The structs below *are* the formats; :func:`json_schemas` publishes them. Three rules keep them a contract:

- A reader ignores keys that it does not know, so that a writer may add hints.
- What changes the meaning of a file gets a new version number, and an unknown version is an error.
- Keys whose value is the default may be left out. Sizes are exact integers; NaN and infinity are no JSON.

A file that breaks a format raises an error that names the file and the place, as ``$.ops[3].cost``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from checkmate.errors import FormatError, GraphError
from checkmate.graph import DFGraph, Op, Tensor
from checkmate.schedule import Schedule

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

Source = bytes | str | os.PathLike[str]
"""What a reader takes: the content as bytes, or the path of a file."""

_Bytes = Annotated[int, msgspec.Meta(ge=0, lt=2**62, description="bytes")]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Cost = Annotated[float, msgspec.Meta(ge=0)]
_GRAPH, _SCHEDULE = "checkmate.graph", "checkmate.schedule"
_VERSION = 1
_Wire = TypeVar("_Wire", bound=msgspec.Struct)


class _Header(msgspec.Struct):
    format: str
    version: int


class TensorV1(msgspec.Struct, frozen=True):
    """One entry of ``$.tensors``."""

    name: str
    size: _Bytes


class OpV1(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of ``$.ops``."""

    name: str
    inputs: tuple[_Index, ...]
    outputs: tuple[_Index, ...]
    cost: _Cost
    workspace: _Bytes = 0
    recomputable: bool = True
    backward: bool = False


class GraphV1(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A graph file."""

    format: Literal["checkmate.graph"]
    version: Literal[1]
    name: str = ""
    cost_unit: str = ""
    fixed_size: _Bytes = 0
    tensors: tuple[TensorV1, ...]
    ops: tuple[OpV1, ...]
    inputs: tuple[_Index, ...]
    outputs: tuple[_Index, ...]


class ScheduleV1(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule file."""

    format: Literal["checkmate.schedule"]
    version: Literal[1]
    graph: Annotated[str, msgspec.Meta(description="digest of the graph: see DFGraph.digest")]
    steps: tuple[tuple[Literal["compute", "free"], _Index], ...]
    meta: dict[str, Any] = {}


def read_graph(source: Source) -> DFGraph:
    """Read a graph.

    Args:
        source: a path, or the content as bytes.

    Raises:
        FormatError: if it is no graph of a version that we know; names the place.
        GraphError: if it is well-formed but no valid graph: a cycle, a dangling index; names the place.
        OSError: if the file can't be read.

    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]], name="tiny")
    >>> read_graph(graph_bytes(graph)) == graph
    True
    """
    content, where = _content(source)
    wire = _decoded(content, where, _GRAPH, GraphV1)
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
        raise GraphError(f"{where}: {'$.' if is_path else ''}{error}") from error


def graph_bytes(graph: DFGraph) -> bytes:
    """The graph in the wire format, UTF-8, one line."""
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
            )
            for op in graph.ops
        ),
        inputs=graph.inputs,
        outputs=graph.outputs,
    )
    return msgspec.json.encode(wire)


def write_graph(path: str | os.PathLike[str], graph: DFGraph) -> None:
    """Write the graph to a file, in the wire format."""
    Path(path).write_bytes(graph_bytes(graph))


def read_schedule(source: Source, graph: DFGraph) -> Schedule:
    """Read a schedule of ``graph``. Whether it is valid, the judge says.

    Args:
        source: a path, or the content as bytes.
        graph: the graph that it must be for, compared by digest; names of ops don't count.

    Raises:
        FormatError: if it is no schedule of a version that we know, or is one of another graph.
        OSError: if the file can't be read.
    """
    return read_schedule_with_meta(source, graph)[0]


def read_schedule_with_meta(source: Source, graph: DFGraph) -> tuple[Schedule, dict[str, Any]]:
    """As :func:`read_schedule`, and the ``meta`` that came with it: hints, which nobody has checked."""
    content, where = _content(source)
    wire = _decoded(content, where, _SCHEDULE, ScheduleV1)
    if wire.graph != graph.digest:
        raise FormatError(
            f"{where}: this schedule is of another graph: its digest is {wire.graph[:12]}…, "
            f"that of {graph!r} is {graph.digest[:12]}… - at `$.graph`"
        )
    codes = [index if kind == "compute" else ~index for kind, index in wire.steps]
    return Schedule(np.array(codes, dtype=np.int64)), wire.meta


def schedule_bytes(schedule: Schedule, graph: DFGraph, meta: Mapping[str, object] | None = None) -> bytes:
    """The schedule in the wire format, UTF-8, one line.

    Args:
        schedule: what to write.
        graph: the graph that it is for; only its digest is written.
        meta: hints for people and tools, e.g. solver, budget, peak; JSON values. Non-finite floats
            become null.
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
    return msgspec.json.encode(wire)


def write_schedule(
    path: str | os.PathLike[str],
    schedule: Schedule,
    graph: DFGraph,
    meta: Mapping[str, object] | None = None,
) -> None:
    """Write the schedule to a file; arguments as in :func:`schedule_bytes`."""
    Path(path).write_bytes(schedule_bytes(schedule, graph, meta))


def json_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each format, by its name.

    >>> sorted(json_schemas())
    ['checkmate.graph', 'checkmate.schedule']
    """
    return {_GRAPH: msgspec.json.schema(GraphV1), _SCHEDULE: msgspec.json.schema(ScheduleV1)}


def _content(source: Source) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        return source, "<bytes>"
    return Path(source).read_bytes(), os.fspath(source)


def _decoded(content: bytes, where: str, expected: str, wire: type[_Wire]) -> _Wire:
    """Check format and version first, so that a newer file says so and not that a key is missing."""
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.format != expected:
            raise FormatError(f"{where}: this is a {header.format!r}, not a {expected!r} - at `$.format`")
        if header.version != _VERSION:
            raise FormatError(
                f"{where}: version {header.version} of {expected!r} is unknown, this release reads "
                f"version {_VERSION}: upgrade checkmate-core - at `$.version`"
            )
        return msgspec.json.decode(content, type=wire)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: {error}") from error

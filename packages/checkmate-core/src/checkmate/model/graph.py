"""The two-sided data-flow graph of a training step: ops, and the tensors that they read and make.

Let V be the ops in a valid execution order and T the tensors. Each tensor is one storage of |t| bytes and
is made by exactly one op, or is resident from the start. One op may make several tensors. In the graph of the
Checkmate paper (Jain et al., MLSys 2020, section 4.1) op and tensor are the same node;
:meth:`DFGraph.from_nodes` builds that classic form.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from checkmate.errors import GraphError
from checkmate.text.markup import figure, outline, table
from checkmate.text.printable import clipped, cost_text, format_bytes, quoted

__all__ = ["CSR", "DFGraph", "Op", "Tensor", "derived", "frozen"]

_MEMORY_LIMIT = 2**63  # the judge counts bytes in int64
_LARGEST_COST = 1e300  # of all ops together: leaves room for recomputation before float64 overflows


_Number = TypeVar("_Number", np.int64, np.float64)
_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One storage of ``size`` bytes. Views and aliases of it are not tensors of their own."""

    name: str
    size: int

    def __post_init__(self) -> None:
        """Store a plain integer: NumPy's would wrap around in sums."""
        object.__setattr__(self, "size", _plain(self.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation: reads tensors, makes tensors.

    Attributes:
        name: for people; need not be unique.
        inputs: indices of the tensors that it reads, each once.
        outputs: indices of the tensors that it makes, each once.
        cost: cost of one run, ≥ 0, in the graph's ``cost_unit``.
        workspace: bytes that it needs only while it runs.
        recomputable: False = runs at most once (randomness that can't be replayed, side effects,
            collectives, the loss boundary).
        backward: belongs to the backward pass; for pictures and heuristics.
        reuses: inputs, as tensor indices, each once, in whose memory the op may allocate its outputs and
            workspace; an in-place kernel writes its output over such an input. The input does not count while
            the op runs, if the schedule frees it right after this run.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost: float
    workspace: int = 0
    recomputable: bool = True
    backward: bool = False
    reuses: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for indices in ("inputs", "outputs", "reuses"):
            object.__setattr__(self, indices, tuple(map(_plain, getattr(self, indices))))
        for number in ("cost", "workspace", "recomputable", "backward"):
            object.__setattr__(self, number, _plain(getattr(self, number)))


@dataclass(frozen=True, kw_only=True, repr=False)
class DFGraph:
    """A training step as ops and tensors.

    Attributes:
        ops: in a valid execution order, the *base order*.
        tensors: every storage that the step touches.
        inputs: tensors resident from the start and never freed (parameters, buffers, the batch).
        outputs: tensors that must be resident at the end (loss, gradients, updated statistics).
        fixed_size: further bytes that are always resident (optimizer state, framework overhead).
        cost_unit: unit of every ``Op.cost``, for example ``"s"`` or ``"flop"``.
        name: for people.

    Raises:
        GraphError: on a dangling index, a tensor with no or several producers, an op before its
            inputs, a negative size or cost, or a total too large to count (bytes: int64, cost: 1e300);
            the message names the place.

    >>> chain = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [0], [1]])
    >>> chain.n_ops, chain.outputs, chain.ideal_cost
    (3, (2,), 3.0)
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    fixed_size: int = 0
    cost_unit: str = ""
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "tensors", tuple(self.tensors))
        object.__setattr__(self, "inputs", tuple(map(_plain, self.inputs)))
        object.__setattr__(self, "outputs", tuple(map(_plain, self.outputs)))
        object.__setattr__(self, "fixed_size", _plain(self.fixed_size))
        _validate(self)

    @classmethod
    def from_nodes(
        cls,
        *,
        cost: Sequence[float],
        size: Sequence[int],
        deps: Sequence[Iterable[int]],
        names: Sequence[str] | None = None,
        backward: Sequence[bool] | None = None,
        outputs: Sequence[int] | None = None,
        fixed_size: int = 0,
        cost_unit: str = "",
        name: str = "",
    ) -> Self:
        """The classic graph of the paper: node i is one op that makes one tensor, both with index i.

        Args:
            cost: cost of each node.
            size: bytes of the tensor that each node makes.
            deps: ``deps[i]`` are the nodes that node i reads, all < i.
            names: names of the nodes; default ``"0"``, ``"1"``, ….
            backward: which nodes belong to the backward pass; default none.
            outputs: nodes that must be resident at the end; default those that no node reads.
            fixed_size: bytes that are always resident.
            cost_unit: unit of ``cost``.
            name: the graph's name.
        """
        n = len(cost)
        columns = {"sizes": size, "deps": deps, "names": names, "backward flags": backward}
        for column, values in columns.items():
            if values is not None and len(values) != n:
                raise GraphError(f"from_nodes: {n} costs, but {len(values)} {column}")
        labels = names if names is not None else [str(i) for i in range(n)]
        reads = [tuple(dict.fromkeys(row)) for row in deps]
        read = {i for row in reads for i in row}
        return cls(
            ops=tuple(
                Op(
                    name=labels[i],
                    inputs=reads[i],
                    outputs=(i,),
                    cost=float(cost[i]),
                    backward=bool(backward[i]) if backward is not None else False,
                )
                for i in range(n)
            ),
            tensors=tuple(Tensor(name=labels[i], size=size[i]) for i in range(n)),
            outputs=tuple(outputs) if outputs is not None else tuple(i for i in range(n) if i not in read),
            fixed_size=fixed_size,
            cost_unit=cost_unit,
            name=name,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Only the fields: derived arrays would be writeable after unpickling."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def n_ops(self) -> int:
        """Number of ops."""
        return len(self.ops)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensors)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each tensor, shape ``[n_tensors]``, read-only."""
        return frozen(np.array([t.size for t in self.tensors], dtype=np.int64))

    @cached_property
    def costs(self) -> npt.NDArray[np.float64]:
        """Cost of each op, shape ``[n_ops]``, read-only."""
        return frozen(np.array([op.cost for op in self.ops], dtype=np.float64))

    @cached_property
    def workspaces(self) -> npt.NDArray[np.int64]:
        """Workspace bytes of each op, shape ``[n_ops]``, read-only."""
        return frozen(np.array([op.workspace for op in self.ops], dtype=np.int64))

    @cached_property
    def reads(self) -> CSR:
        """The tensors that each op reads."""
        return CSR.of([op.inputs for op in self.ops])

    @cached_property
    def makes(self) -> CSR:
        """The tensors that each op makes."""
        return CSR.of([op.outputs for op in self.ops])

    @cached_property
    def reuses(self) -> CSR:
        """The inputs whose memory each op reuses; graph inputs, which are never freed, left out."""
        pinned = set(self.inputs)
        return CSR.of([[t for t in op.reuses if t not in pinned] for op in self.ops])

    @cached_property
    def reused(self) -> tuple[frozenset[int], ...]:
        """The inputs that each op reuses, for looking up."""
        return tuple(frozenset(op.reuses) for op in self.ops)

    @cached_property
    def readers(self) -> CSR:
        """The ops that read each tensor, in base order."""
        rows: list[list[int]] = [[] for _ in self.tensors]
        for i, op in enumerate(self.ops):
            for t in op.inputs:
                rows[t].append(i)
        return CSR.of(rows)

    @cached_property
    def producer(self) -> npt.NDArray[np.int64]:
        """The op that makes each tensor, −1 for graph inputs; shape ``[n_tensors]``, read-only."""
        made_by = np.full(self.n_tensors, -1, dtype=np.int64)
        for i, op in enumerate(self.ops):
            made_by[list(op.outputs)] = i
        return frozen(made_by)

    @cached_property
    def base_size(self) -> int:
        """Bytes that no schedule can free, ``fixed_size`` and all graph inputs."""
        return self.fixed_size + sum(self.tensors[t].size for t in self.inputs)

    @cached_property
    def ideal_cost(self) -> float:
        """Cost of computing every op once."""
        return math.fsum(op.cost for op in self.ops)

    @cached_property
    def digest(self) -> str:
        """Stable hash of the content without names, SHA-256 over little-endian int64 and float64 arrays.

        In order: reads, makes (indptr, indices), costs (−0.0 as 0.0), workspaces, flags, sizes, inputs,
        outputs, fixed_size and, if any op reuses an input, the inputs that ops reuse (indptr, indices), each
        preceded by its length; then ``cost_unit`` in UTF-8, lone surrogates as if they were characters.
        """
        flags = np.array([2 * op.backward + op.recomputable for op in self.ops], dtype=np.int64)
        parts = (*self.reads, *self.makes, self.costs + 0.0, self.workspaces, flags, self.sizes)
        lists = [np.array(x, dtype=np.int64) for x in (self.inputs, self.outputs, [self.fixed_size])]
        reuses = CSR.of([op.reuses for op in self.ops])
        sha = hashlib.sha256()
        for array in (*parts, *lists, *(reuses if len(reuses.indices) else ())):
            sha.update(np.int64(len(array)).astype("<i8").tobytes())
            sha.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        sha.update(self.cost_unit.encode(errors="surrogatepass"))
        return sha.hexdigest()

    def op_label(self, i: int) -> str:
        """How messages name an op: ``op 3 'conv1'``."""
        return f"op {i} {quoted(self.ops[i].name)}" if 0 <= i < self.n_ops else f"op {i}"

    def tensor_label(self, t: int) -> str:
        """How messages name a tensor: ``tensor 7 'x'``."""
        return f"tensor {t} {quoted(self.tensors[t].name)}" if 0 <= t < self.n_tensors else f"tensor {t}"

    def _repr_html_(self) -> str:
        """The counts, and a picture of the bytes that each op makes."""
        backward = sum(op.backward for op in self.ops)
        rows = [
            ("ops", f"{self.n_ops:,}, {backward:,} of them backward"),
            ("tensors", f"{self.n_tensors:,}, {format_bytes(sum(t.size for t in self.tensors))} together"),
            ("always resident", format_bytes(self.base_size)),
            ("cost", cost_text(self.ideal_cost, self.cost_unit)),
        ]
        made = np.array([sum(self.tensors[t].size for t in op.outputs) for op in self.ops], dtype=np.int64)
        caption = "Bytes that each op makes, in base order."
        title = f"Graph {clipped(self.name)}".rstrip()
        return figure(title, table(rows, numbers=[1]), outline(made, caption))

    def __repr__(self) -> str:
        unit = f", cost in {clipped(self.cost_unit)}" if self.cost_unit else ""
        return f"<DFGraph {quoted(self.name)}: {self.n_ops} ops, {self.n_tensors} tensors{unit}>"


def _plain(number: Any) -> Any:
    """NumPy's numbers as Python's, which never wrap around; other values unchanged."""
    return number.item() if isinstance(number, np.generic) else number


def _validate(graph: DFGraph) -> None:
    """Raise GraphError at the first violation: sizes and costs, then producers, then the order of the ops."""
    _check_totals(graph)
    _check_producers(graph)
    _check_order(graph)
    _check_indices(graph.outputs, graph.n_tensors, "outputs")


def _check_totals(graph: DFGraph) -> None:
    """Every size and cost is in range, and no schedule holds more bytes than int64 can count.

    While an op runs, every tensor may be resident and its outputs twice.
    """
    total = sum(
        _check_bytes(t.size, f"tensors[{i}] ({quoted(t.name)}): size") for i, t in enumerate(graph.tensors)
    )
    total_cost, workspace = 0.0, 0
    for i, op in enumerate(graph.ops):
        place = f"ops[{i}] ({quoted(op.name)})"
        cost: Any = op.cost
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= _LARGEST_COST:
            raise GraphError(f"{place}: cost is {cost!r}, must be a number from 0 to {_LARGEST_COST:g}")
        total_cost += cost
        flags: dict[str, object] = {"recomputable": op.recomputable, "backward": op.backward}
        for flag, value in flags.items():
            if not isinstance(value, bool):
                raise GraphError(f"{place}: {flag} is {value!r}, must be True or False")
        workspace = max(workspace, _check_bytes(op.workspace, f"{place}: workspace"))
    if total_cost > _LARGEST_COST:
        raise GraphError(f"ops: all costs together are {total_cost:g}, must be at most {_LARGEST_COST:g}")
    if 2 * total + _check_bytes(graph.fixed_size, "fixed_size") + workspace >= _MEMORY_LIMIT:
        raise GraphError(
            f"tensors: twice their {total} bytes, fixed_size {graph.fixed_size} and the largest workspace "
            f"{workspace} must be less than 2^63 together"
        )


def _check_producers(graph: DFGraph) -> None:
    """Every tensor is a graph input or has exactly one producer."""
    made = bytearray(graph.n_tensors)
    for t in _check_indices(graph.inputs, len(made), "inputs"):
        made[t] = 1
    for i, op in enumerate(graph.ops):
        for t in _check_indices(op.outputs, len(made), f"ops[{i}] ({quoted(op.name)}): outputs"):
            if made[t]:
                raise GraphError(
                    f"ops[{i}] ({quoted(op.name)}): makes {graph.tensor_label(t)}, "
                    "which is a graph input or has another producer"
                )
            made[t] = 1
    if not all(made):
        t = made.index(0)
        raise GraphError(
            f"tensors[{t}] ({quoted(graph.tensors[t].name)}): has no producer and is not a graph input"
        )


def _check_order(graph: DFGraph) -> None:
    """Every op comes after the producers of its inputs."""
    available = bytearray(graph.n_tensors)
    for t in graph.inputs:
        available[t] = 1
    for i, op in enumerate(graph.ops):
        place = f"ops[{i}] ({quoted(op.name)})"
        for t in _check_indices(op.inputs, len(available), f"{place}: inputs"):
            if not available[t]:
                if t in op.outputs:
                    raise GraphError(f"{place}: reads its own output, {graph.tensor_label(t)}: a cycle")
                maker = next(k for k in range(i + 1, graph.n_ops) if t in graph.ops[k].outputs)
                raise GraphError(
                    f"{place}: reads {graph.tensor_label(t)}, which {graph.op_label(maker)} makes, after it: "
                    "a cycle, or ops out of execution order; GraphBuilder takes ops in any order"
                )
        reads = frozenset(op.inputs if op.reuses else ())
        for t in _check_indices(op.reuses, len(available), f"{place}: reuses"):
            if t not in reads:
                raise GraphError(f"{place}: reuses {graph.tensor_label(t)}, which is none of its inputs")
        for t in op.outputs:
            available[t] = 1


def _check_bytes(size: object, place: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise GraphError(f"{place} is {size!r}, must be an integer ≥ 0 (bytes)")
    return size


def _check_indices(indices: tuple[int, ...], n: int, place: str) -> tuple[int, ...]:
    entries: tuple[object, ...] = indices
    for t in entries:
        if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < n:
            raise GraphError(f"{place} has the index {t!r}, but there are {n} tensors")
    if len(set(indices)) != len(indices):
        raise GraphError(f"{place} lists a tensor twice: {indices}; list each once")
    return indices


class CSR(NamedTuple):
    """Rows of indices, compressed: row i is ``indices[indptr[i]:indptr[i + 1]]``; read-only int64 arrays."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]

    def row(self, i: int) -> npt.NDArray[np.int64]:
        """The indices of row ``i``, as a view."""
        return self.indices[self.indptr[i] : self.indptr[i + 1]]

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The row to which each entry of ``indices`` belongs, in the same shape."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Compress a list of rows."""
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=indptr[1:])
        indices = np.fromiter((i for row in rows for i in row), dtype=np.int64, count=int(indptr[-1]))
        return cls(frozen(indptr), frozen(indices))


def frozen(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """A copy in immutable memory, which even setting the flag can't make writeable."""
    return np.frombuffer(array.tobytes(), dtype=array.dtype)


def derived(function: Callable[[DFGraph], _Fact]) -> Callable[[DFGraph], _Fact]:
    """Cache the result of ``function`` on the graph; the result must be immutable, as the graph is."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(graph: DFGraph) -> _Fact:
        facts = graph.__dict__
        if name not in facts:
            facts[name] = function(graph)
        fact: _Fact = facts[name]
        return fact

    return kept

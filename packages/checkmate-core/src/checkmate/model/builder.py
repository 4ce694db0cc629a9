"""A graph written by hand: ops and tensors by name, in any order, joined into a DFGraph at the end."""

from __future__ import annotations

import difflib
import graphlib
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkmate.errors import BudgetError, GraphError
from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.units import parse_bytes

__all__ = ["GraphBuilder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One op as declared."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    cost: float
    workspace: int
    recomputable: bool
    backward: bool
    reuses: tuple[str, ...]


class GraphBuilder:
    """Builds a :class:`DFGraph` from declarations by name.

    Ops may be declared in any order. If every op is declared after the producers of its inputs, that order is
    the base order; otherwise they are sorted, keeping the order of declaration wherever there is a choice.

    Args:
        name: the graph's name, for people.
        cost_unit: unit of every cost, for example ``"s"``.
        fixed_size: further bytes that are always resident; an int, or a size such as ``"4MiB"``.

    >>> b = GraphBuilder("tiny", cost_unit="s")
    >>> b.input("x", "1KiB")
    >>> b.op("layer", reads=["x"], makes={"h": 512, "mask": 64}, cost=2e-3)
    >>> b.op("loss", reads=["h"], makes={"loss": 4}, cost=1e-3, recomputable=False)
    >>> b.output("loss")
    >>> b.build()
    <DFGraph 'tiny': 2 ops, 4 tensors, cost in s>
    """

    def __init__(self, name: str = "", *, cost_unit: str = "", fixed_size: int | str = 0) -> None:
        self._name = name
        self._cost_unit = cost_unit
        self._fixed_size = _bytes(fixed_size, "fixed_size")
        self._sizes: dict[str, int] = {}
        self._inputs: list[str] = []
        self._outputs: dict[str, None] = {}  # in order
        self._ops: dict[str, _Entry] = {}
        self._maker: dict[str, str] = {}

    def input(self, name: str, size: int | str) -> None:
        """A tensor that is resident from the start and never freed: a parameter, a buffer, the batch.

        Raises:
            GraphError: if the name is taken, or the size can't be read.
        """
        self._new_tensor(name, size, f"input {name!r}")
        self._inputs.append(name)

    def op(
        self,
        name: str,
        *,
        reads: Iterable[str] = (),
        makes: Mapping[str, int | str],
        cost: float = 1.0,
        workspace: int | str = 0,
        recomputable: bool = True,
        backward: bool = False,
        reuses: Iterable[str] = (),
    ) -> None:
        """One operation.

        Args:
            name: a unique name.
            reads: names of the tensors that it reads; they may be declared later.
            makes: the tensors that it makes, each with its size: bytes, or a size such as ``"4MiB"``.
            cost: cost of one run, ≥ 0, in the graph's ``cost_unit``.
            workspace: bytes, or a size, needed only while it runs.
            recomputable: False = runs at most once.
            backward: belongs to the backward pass.
            reuses: tensors among ``reads`` whose memory its outputs take over, if this op reads them last.

        Raises:
            GraphError: if the name is taken, a tensor has another producer, the op reads its own output, or
                it reuses a tensor that it does not read.
        """
        place = f"op {name!r}"
        if name in self._ops:
            raise GraphError(f"{place} exists already: give each op a name of its own")
        if isinstance(reads, str):
            raise GraphError(f"{place}: reads is the string {reads!r}, must be a list: reads=[{reads!r}]")
        if not isinstance(makes, Mapping):
            raise GraphError(f"{place}: makes is {makes!r}, must map each tensor to its size: {{'y': 1024}}")
        read = tuple(dict.fromkeys(reads))
        for t in read:
            if t in makes:
                raise GraphError(
                    f"{place} reads its own output {t!r}; an in-place update makes a tensor with a new name"
                )
        reused = tuple(dict.fromkeys((reuses,) if isinstance(reuses, str) else reuses))
        for t in reused:
            if t not in read:
                raise GraphError(f"{place} reuses {t!r}, which it does not read: name a tensor of reads")
        entry = _Entry(
            reads=read,
            makes=tuple(makes),
            cost=cost,
            workspace=_bytes(workspace, f"{place}: workspace"),
            recomputable=recomputable,
            backward=backward,
            reuses=reused,
        )
        sizes = {t: _bytes(size, f"{place}: size of {t!r}") for t, size in makes.items()}
        for t in sizes:
            self._check_free(t, place)
        self._sizes |= sizes
        self._maker |= dict.fromkeys(sizes, name)
        self._ops[name] = entry

    def output(self, *names: str) -> None:
        """Tensors that must be resident at the end; they may be declared later.

        Raises:
            GraphError: if a tensor is named twice.
        """
        for name in names:
            if name in self._outputs:
                raise GraphError(f"output {name!r} exists already: name each output once")
            self._outputs[name] = None

    def build(self) -> DFGraph:
        """The graph of all declarations; afterwards the builder can take more, and build again.

        Raises:
            GraphError: if a tensor has no producer, at a cycle (it is named), without outputs, and wherever
                :class:`DFGraph` raises it.
        """
        for op, entry in self._ops.items():
            for t in entry.reads:
                self._check_known(t, f"op {op!r} reads")
        for t in self._outputs:
            self._check_known(t, "the outputs name")
        if self._ops and not self._outputs:
            read = {t for entry in self._ops.values() for t in entry.reads}
            ends = [t for t in self._maker if t not in read]
            raise GraphError(
                f"no outputs: name the tensors needed at the end with output(…); no op reads {_listed(ends)}"
            )
        index = {t: i for i, t in enumerate(self._sizes)}
        return DFGraph(
            ops=tuple(_op(name, self._ops[name], index) for name in self._sorted()),
            tensors=tuple(Tensor(name=t, size=size) for t, size in self._sizes.items()),
            inputs=tuple(index[t] for t in self._inputs),
            outputs=tuple(index[t] for t in self._outputs),
            fixed_size=self._fixed_size,
            cost_unit=self._cost_unit,
            name=self._name,
        )

    def _new_tensor(self, name: str, size: int | str, place: str) -> None:
        self._check_free(name, place)
        self._sizes[name] = _bytes(size, f"{place}: size")

    def _check_free(self, name: str, place: str) -> None:
        if name in self._sizes:
            owner = f"op {self._maker[name]!r} makes it" if name in self._maker else "it is a graph input"
            raise GraphError(f"{place}: tensor {name!r} exists already: {owner}")

    def _check_known(self, name: str, place: str) -> None:
        if name not in self._sizes:
            similar = difflib.get_close_matches(str(name), self._sizes, n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else "declare it with input(…) or makes={…}"
            raise GraphError(f"{place} the unknown tensor {name!r}: {hint}")

    def _sorted(self) -> list[str]:
        """The names of the ops in execution order; of several ready ops, the first declared goes first."""
        rank = {name: i for i, name in enumerate(self._ops)}
        names = list(self._ops)
        sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
        for name, entry in self._ops.items():
            sorter.add(name, *(self._maker[t] for t in entry.reads if t in self._maker))
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            cycle = " → ".join(repr(name) for name in error.args[1])
            raise GraphError(f"a cycle of ops, each reading what the one before it makes: {cycle}") from None
        ready = [rank[name] for name in sorter.get_ready()]
        heapq.heapify(ready)
        order = []
        while ready:
            name = names[heapq.heappop(ready)]
            order.append(name)
            sorter.done(name)
            for follower in sorter.get_ready():
                heapq.heappush(ready, rank[follower])
        return order


def _op(name: str, entry: _Entry, index: Mapping[str, int]) -> Op:
    return Op(
        name=name,
        inputs=tuple(index[t] for t in entry.reads),
        outputs=tuple(index[t] for t in entry.makes),
        cost=entry.cost,
        workspace=entry.workspace,
        recomputable=entry.recomputable,
        backward=entry.backward,
        reuses=tuple(index[t] for t in entry.reuses),
    )


def _bytes(size: int | str, place: str) -> int:
    try:
        return parse_bytes(size)
    except BudgetError as error:
        raise GraphError(f"{place}: {error}") from None


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")

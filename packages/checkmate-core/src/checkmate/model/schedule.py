"""A schedule: a finite word over {compute(v) : v an op} ∪ {free(t) : t a tensor}.

Solvers make schedules, the judge replays them, executors run them, files hold them. An op may be computed
many times; :mod:`checkmate.simulate` defines the meaning of a schedule, and which ones are valid.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from checkmate.errors import GraphError
from checkmate.model.graph import DFGraph
from checkmate.text.markup import figure, outline, table

__all__ = ["Compute", "Free", "Schedule", "Step"]


@dataclass(frozen=True, slots=True)
class Compute:
    """Run op ``op``; afterwards all its outputs are resident."""

    op: int


@dataclass(frozen=True, slots=True)
class Free:
    """Release the bytes of tensor ``tensor``."""

    tensor: int


Step = Compute | Free


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule:
    """A sequence of steps, held as one read-only int64 array: ``op`` for a compute, ``~tensor`` for a free.

    Raises:
        GraphError: if the codes are not a one-dimensional array of integers that int64 can hold.

    >>> schedule = Schedule.of([Compute(0), Compute(1), Free(0)])
    >>> list(schedule)
    [Compute(op=0), Compute(op=1), Free(tensor=0)]
    >>> schedule.codes
    array([ 0,  1, -1])
    """

    codes: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        given = np.asarray(self.codes)
        integers = given.size == 0 or (given.dtype.kind in "iu" and np.can_cast(given.dtype, np.int64))
        if given.ndim != 1 or not integers:
            raise GraphError(
                "a schedule is a one-dimensional array of integers that int64 can hold, "
                f"not of {given.dtype} with shape {given.shape}"
            )
        codes = given.astype(np.int64)
        codes.flags.writeable = False
        object.__setattr__(self, "codes", codes)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Self:
        """The schedule of these steps.

        Raises:
            GraphError: at a negative index, which would encode a step of the other kind.
        """
        codes = []
        for k, step in enumerate(steps):
            index = step.op if isinstance(step, Compute) else step.tensor
            if index < 0:
                raise GraphError(f"step {k} is {step}: indices are ≥ 0")
            codes.append(index if isinstance(step, Compute) else ~index)
        return cls(np.array(codes))

    @classmethod
    def from_sequence(cls, graph: DFGraph, sequence: Sequence[int]) -> Self:
        """Compute these ops in this order and free every tensor as early as is legal.

        A read uses the latest copy. A copy is freed right after its last reader, or right after it was
        made if no op reads it, unless it is the last copy of a graph output. Recomputed ops are repeated.

        >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])
        >>> list(Schedule.from_sequence(graph, [0, 1]))
        [Compute(op=0), Compute(op=1), Free(tensor=0)]
        """
        ops = [operator.index(i) for i in sequence]
        if any(not 0 <= i < graph.n_ops for i in ops):
            raise GraphError(f"the sequence names an op outside of 0 … {graph.n_ops - 1}")
        dying: list[list[int]] = [[] for _ in ops]
        needed_later = [False] * graph.n_tensors
        for t in (*graph.outputs, *graph.inputs):
            needed_later[t] = True
        for position in range(len(ops) - 1, -1, -1):
            op = graph.ops[ops[position]]
            for t in op.outputs:
                if not needed_later[t]:
                    dying[position].append(t)
                needed_later[t] = False
            for t in op.inputs:
                if not needed_later[t]:
                    dying[position].append(t)
                    needed_later[t] = True
        codes: list[int] = []
        for i, freed in zip(ops, dying, strict=True):
            codes.append(i)
            codes.extend(~t for t in sorted(freed))
        return cls(np.array(codes, dtype=np.int64))

    @property
    def sequence(self) -> npt.NDArray[np.int64]:
        """The ops in the order in which they are computed, with repeats."""
        return self.codes[self.codes >= 0]

    @property
    def keeps_base_order(self) -> bool:
        """Whether the first runs of its ops are in base order.

        >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], []])
        >>> [Schedule.from_sequence(graph, s).keeps_base_order for s in ([0, 1, 0], [1, 0])]
        [True, False]
        """
        first = list(dict.fromkeys(self.sequence.tolist()))
        return first == sorted(first)

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[Step]:
        return (Compute(code) if code >= 0 else Free(~code) for code in self.codes.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and np.array_equal(self.codes, other.codes)

    def __hash__(self) -> int:
        return hash(self.codes.tobytes())

    def _repr_html_(self) -> str:
        """The counts, and a picture of the ops in the order in which they run."""
        ops = self.sequence
        caption = "Index of the op that each compute runs; where it falls, ops run again."
        counts = [
            ("computes", f"{len(ops):,}"),
            ("recomputations", f"{len(ops) - len(np.unique(ops)):,}"),
            ("frees", f"{len(self) - len(ops):,}"),
        ]
        return figure("Schedule", table(counts, numbers=[1]), outline(ops, caption, lowest=True))

    def __repr__(self) -> str:
        computes = len(self.sequence)
        return f"<Schedule: {computes} computes, {len(self) - computes} frees>"

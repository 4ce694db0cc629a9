"""A judged schedule over time: the bytes held during each run, by kind and by tensor.

Run k is the k-th compute of the schedule. Frees take no time and only shrink memory, so the runs show memory
over time. A *stay* [a, b) is one copy of a tensor: made by run a, held up to and including run b − 1. For
every run k whose op has workspace w::

    memory[k] = fixed_size + Σ inputs + Σ {|t| : a stay of t contains k} + w

If the op of a copy's last run reuses the copy, the stay ends before that run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.simulate import Timeline

__all__ = ["Holder", "Phase", "Reading", "Stays"]

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class Phase(IntEnum):
    """The phase of a run: first run of a forward op, first run of a backward op, or recomputation."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2


class Stays(NamedTuple):
    """All copies of tensors except graph inputs; one entry per copy, in the order of making.

    Attributes:
        tensor: index of the tensor; int64.
        first: the run that makes it; int64.
        end: one more than the last run during which it is held; int64.
        used: whether a later run reads it, or it is a graph output at the end; bool.
    """

    tensor: _Ints
    first: _Ints
    end: _Ints
    used: _Bools


class Holder(NamedTuple):
    """A tensor, or another holder of bytes, during one run: its name, kind and bytes."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """A timeline by runs; arrays have one entry per run, unless their docstring says otherwise.

    >>> from checkmate import DFGraph, Schedule, simulate
    >>> chain = DFGraph.from_nodes(cost=[2, 1, 1], size=[4, 8, 2], deps=[[], [0], [0, 1]])
    >>> reading = Reading(simulate(chain, Schedule.from_sequence(chain, [0, 1, 2])))
    >>> reading.starts.tolist(), reading.memory.tolist(), reading.peak_run
    ([0.0, 2.0, 3.0, 4.0], [4, 12, 14], 2)
    """

    timeline: Timeline

    @cached_property
    def steps(self) -> _Ints:
        """The step of the schedule of each run."""
        return np.flatnonzero(self.timeline.schedule.codes >= 0)

    @cached_property
    def ops(self) -> _Ints:
        """The op of each run."""
        return self.timeline.schedule.sequence

    @cached_property
    def starts(self) -> npt.NDArray[np.float64]:
        """Start of each run, in the graph's cost unit, and the end of the last; shape ``[n_runs + 1]``."""
        return np.concatenate([[0.0], np.cumsum(self.timeline.graph.costs[self.ops])])

    @cached_property
    def memory(self) -> _Ints:
        """Bytes held during each run, as the judge counted them."""
        return self.timeline.memory[self.steps]

    @property
    def peak_run(self) -> int:
        """The first run at which memory is largest; −1 without runs."""
        return int(self.memory.argmax()) if len(self.memory) else -1

    @cached_property
    def phases(self) -> _Ints:
        """The :class:`Phase` of each run."""
        backward = np.array([op.backward for op in self.timeline.graph.ops], dtype=np.int64)
        again = np.ones(len(self.ops), dtype=bool)
        again[np.unique(self.ops, return_index=True)[1]] = False
        return np.where(again, int(Phase.RECOMPUTE), backward[self.ops])

    @cached_property
    def stays(self) -> Stays:
        """Every copy of every tensor that is made."""
        graph = self.timeline.graph
        tensor: list[int] = []
        first: list[int] = []
        end: list[int] = []
        used: list[bool] = []
        current: dict[int, int] = {}
        run, reused = 0, frozenset[int]()
        for step, code in enumerate(self.timeline.schedule.codes.tolist()):
            if code < 0:
                end[current.pop(~code)] = run - (~code in reused)
                continue
            reused = self.timeline.reused_at(step)
            for t in graph.ops[code].inputs:
                if t in current:
                    used[current[t]] = True
            for t in graph.ops[code].outputs:
                if t in current:
                    end[current[t]] = run + 1  # while an op runs again, the older copy is still held
                current[t] = len(tensor)
                tensor.append(t)
                first.append(run)
                end.append(-1)
                used.append(False)
            run += 1
        returned = set(graph.outputs)
        for t, stay in current.items():
            end[stay] = run
            used[stay] |= t in returned
        tensors, firsts, ends = (np.array(x, dtype=np.int64) for x in (tensor, first, end))
        return Stays(tensors, firsts, ends, np.array(used, dtype=bool))

    @cached_property
    def by_kind(self) -> dict[str, _Ints]:
        """Bytes of each kind during each run; together they are ``memory``.

        ``base`` = inputs and fixed; ``activations`` = made by forward ops; ``gradients`` = made by backward
        ops; ``workspace`` = needed only while the op runs.
        """
        graph, n = self.timeline.graph, len(self.ops)
        backward = np.array([op.backward for op in graph.ops], dtype=bool)
        tensor, first, end, _ = self.stays
        made_backward = backward[graph.producer[tensor]]
        kinds = {"base": np.full(n, graph.base_size, dtype=np.int64)}
        for name, mine in (("activations", ~made_backward), ("gradients", made_backward)):
            change = np.zeros(n + 1, dtype=np.int64)
            np.add.at(change, first[mine], graph.sizes[tensor[mine]])
            np.subtract.at(change, end[mine], graph.sizes[tensor[mine]])
            kinds[name] = np.cumsum(change)[:n]
        return kinds | {"workspace": graph.workspaces[self.ops]}

    def largest_at(self, runs: Iterable[int], count: int) -> list[list[int]]:
        """The largest tensors held during each of these (ascending) runs, graph inputs excluded."""
        sizes = self.timeline.graph.sizes
        tensor, first, end, _ = (column.tolist() for column in self.stays)
        heap: list[tuple[int, int, int]] = []
        added, answers = 0, []
        for run in runs:
            while added < len(tensor) and first[added] <= run:
                heapq.heappush(heap, (-int(sizes[tensor[added]]), tensor[added], end[added]))
                added += 1
            top: list[tuple[int, int, int]] = []
            while heap and len(top) < count:
                stay = heapq.heappop(heap)
                if stay[2] > run:
                    top.append(stay)
            for stay in top:
                heapq.heappush(heap, stay)
            answers.append([t for _, t, _ in top])
        return answers

    def holders(self, run: int) -> list[Holder]:
        """Everything that holds bytes during ``run``, largest first; together they are ``memory[run]``."""
        graph, (tensor, first, end, _) = self.timeline.graph, self.stays
        held = tensor[(first <= run) & (run < end)].tolist()
        made_by = graph.producer
        rows = [Holder("(always resident)", "fixed", graph.fixed_size)]
        rows += [Holder(graph.tensors[t].name, "input", graph.tensors[t].size) for t in graph.inputs]
        for t in held:
            kind = "gradient" if graph.ops[int(made_by[t])].backward else "activation"
            rows.append(Holder(graph.tensors[t].name, kind, graph.tensors[t].size))
        if run >= 0:
            op = graph.ops[int(self.ops[run])]
            rows.append(Holder(op.name, "workspace", op.workspace))
        return sorted((row for row in rows if row.size), key=lambda row: -row.size)

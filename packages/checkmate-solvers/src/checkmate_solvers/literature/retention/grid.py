"""The event grid: a number for every moment at which an op may run, in the order of time.

Stage k ends with the first run of op k; before it, ops 0 … k − 1 may run again, in base order. So op v in
stage k ≥ v has the event k (k + 1) / 2 + v. The end of the schedule counts as one more op, of number n, that
reads the graph outputs. Source: Bartan, Li, Teague, Lott and Dilkina, "Moccasin: Efficient Tensor
Rematerialization for Neural Networks", ICML 2023, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from checkmate import DFGraph

__all__ = ["Grid", "event"]

_SAFE = 2**60


def event(stage: int, op: int) -> int:
    """The number of the moment at which an op runs in a stage.

    >>> [event(stage, op) for stage in range(3) for op in range(stage + 1)]
    [0, 1, 2, 3, 4, 5]
    """
    return stage * (stage + 1) // 2 + op


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """The ops, bytes and costs of the model, in whole numbers.

    Bytes are counted in units of their greatest common divisor, exactly. Only where bytes × events might
    overflow 64 bits, the unit is larger, and bytes are rounded up.

    Attributes:
        graph: all of its ops are needed.
        room: bytes beside graph inputs and ``fixed_size``.
    """

    graph: DFGraph
    room: int

    @property
    def end(self) -> int:
        """The event of the end."""
        return event(self.graph.n_ops, self.graph.n_ops)

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """For each tensor that is made and used, the ops that read it in base order; n = the end."""
        graph = self.graph
        end = {u: [graph.n_ops] for u in graph.outputs}
        made = np.flatnonzero(graph.producer >= 0).tolist()
        readers = {u: [*graph.readers.row(u).tolist(), *end.get(u, [])] for u in made}
        return {u: ops for u, ops in readers.items() if ops}

    @cached_property
    def last_stage(self) -> list[int]:
        """For each op, the last stage in which running it can be of use."""
        last = list(range(self.graph.n_ops + 1))
        for v in range(self.graph.n_ops - 1, -1, -1):
            for u in self.graph.ops[v].outputs:
                last[v] = max([last[v], *(last[j] for j in self.readers.get(u, []))])
        return last

    def again(self, v: int) -> list[int]:
        """The events at which op ``v`` may run again, ascending."""
        if not self.graph.ops[v].recomputable:
            return []
        return [event(k, v) for k in range(v + 1, self.last_stage[v] + 1)]

    @cached_property
    def sizes(self) -> list[int]:
        """Units of each tensor."""
        return [self._units(size) for size in self.graph.sizes.tolist()]

    @cached_property
    def passing(self) -> list[int]:
        """Units that an op needs only while it runs: workspace, and outputs without a reader."""
        ops = self.graph.ops
        return [
            self._units(op.workspace) + sum(self.sizes[u] for u in op.outputs if u not in self.readers)
            for op in ops
        ]

    @property
    def capacity(self) -> int:
        """Units of the room."""
        return self.room // self._unit

    @cached_property
    def costs(self) -> list[int]:
        """Cost of each op in whole units: exactly if the highest is at most 2^20, else that is 2^20."""
        costs = self.graph.costs
        highest = float(costs.max(initial=0.0)) or 1.0
        if highest <= 2**20 and all(cost.is_integer() for cost in costs.tolist()):
            return [int(cost) for cost in costs]
        return [int(cost) for cost in np.rint(costs / highest * 2**20)]

    def runs(self, sequence: Sequence[int]) -> list[list[int]]:
        """The events at which a sequence of ops runs each of them; two runs in one stage count as one."""
        runs: list[list[int]] = [[] for _ in range(self.graph.n_ops + 1)]
        runs[-1].append(self.end)
        stage = self.graph.n_ops
        first = {v: i for i, v in reversed(list(enumerate(sequence)))}
        for i in range(len(sequence) - 1, -1, -1):
            v = sequence[i]
            stage = v if first[v] == i else stage
            if stage >= v and event(stage, v) not in runs[v]:
                runs[v].insert(0, event(stage, v))
        return runs

    def _units(self, size: int) -> int:
        return -(-size // self._unit)

    @cached_property
    def _unit(self) -> int:
        divisor = math.gcd(*self.graph.sizes.tolist(), *self.graph.workspaces.tolist()) or 1
        return divisor * max(1, -(-(self.room // divisor) * (self.end + 1) // _SAFE))

"""The base order inside a budget: evict when memory is short, recompute on demand.

This is paging with a known future. The state is the set of resident tensors. Before an op runs, its missing
inputs are recomputed, and in turn the inputs of the ops that recompute them. When an op does not fit,
resident tensors are evicted in the order of a score that tensor t has at moment p:

    score(t) = |t|^a · distance(t)^b / again(t)^c            (the largest is evicted first)

|t| is its size in bytes, and again(t) the cost of recomputing it, missing ancestors included.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from checkmate.analysis import needed_ops
from checkmate.model.graph import DFGraph, Op
from checkmate.problem.deadline import NEVER, Deadline

__all__ = ["Weights", "evicting_sequence"]

_NEVER = 1 << 60


class Weights(NamedTuple):
    """Exponents of the score: of the size, of the distance, of the cost of recomputing.

    With ``stale`` the distance is the time since the last use, else the time until the next one. Tensors
    whose only later use is as a graph output are evicted last, unless ``outputs_too``.
    """

    size: float
    distance: float
    cost: float
    stale: bool = False
    outputs_too: bool = False


_EVEN = Weights(1, 1, 1)


def evicting_sequence(
    graph: DFGraph,
    budget: int,
    weights: Weights = _EVEN,
    ceiling: float = math.inf,
    deadline: Deadline = NEVER,
) -> list[int] | None:
    """The base order of the needed ops, with evictions and recomputation: op indices with repeats.

    None if the rule finds no sequence with a peak within ``budget`` bytes, or not before the deadline, or
    none that costs less than the ceiling.
    """
    return _Machine(graph, budget, weights, ceiling, deadline).run()


class _Machine:
    """The state of one run of the base order within a budget."""

    def __init__(
        self, graph: DFGraph, budget: int, weights: Weights, ceiling: float, deadline: Deadline
    ) -> None:
        self.graph, self.budget, self.weights = graph, budget, weights
        self.left, self.deadline = ceiling, deadline
        self.order = np.flatnonzero(needed_ops(graph)).tolist()
        self.sizes: list[int] = graph.sizes.tolist()
        self.costs: list[float] = graph.costs.tolist()
        self.producer: list[int] = graph.producer.tolist()
        self.readers = graph.readers
        self.uses: list[list[int]] = [[] for _ in graph.tensors]
        for v in self.order:
            for t in graph.ops[v].inputs:
                self.uses[t].append(v)
        for t in graph.outputs:
            self.uses[t].append(graph.n_ops)
        for row in self.uses:
            row.reverse()
        self.sequence: list[int] = []
        self.now = 0
        self.held = graph.base_size
        self.resident: dict[int, None] = {}
        self.lost: dict[int, None] = {}
        self.present = bytearray(graph.n_tensors)
        for t in graph.inputs:
            self.present[t] = True
        self.again = [0.0] * graph.n_tensors
        self.touched = [0] * graph.n_tensors

    def run(self) -> list[int] | None:
        """Run the whole base order, then recompute missing graph outputs; None if it gets stuck."""
        if self.held > self.budget:
            return None
        for v in self.order:
            self.now = v
            if not self._compute(v):
                return None
        self.now = self.graph.n_ops
        for t in self.graph.outputs:
            if not self.present[t] and not self._compute(self.producer[t]):
                return None
        return self.sequence if all(self.present[t] for t in self.graph.outputs) else None

    def _compute(self, v: int) -> bool:
        """Run op ``v`` after the ops that recompute its missing inputs; False if stuck.

        It gives up after n computes: evictions are thrashing.
        """
        limit = len(self.sequence) + self.graph.n_ops
        stack = [v]
        while stack:
            op = self.graph.ops[stack[-1]]
            missing = next((t for t in op.inputs if not self.present[t]), None)
            if missing is not None:
                stack.append(self.producer[missing])
                continue
            if len(self.sequence) >= limit or self.left < 0 or self.deadline.passed:
                return False
            if not self._room(stack):
                return False
            self._run(stack.pop())
        return True

    def _run(self, v: int) -> None:
        op = self.graph.ops[v]
        self.sequence.append(v)
        self.left -= self.costs[v]
        for t in op.outputs:
            if not self.present[t]:
                self.present[t] = True
                self.resident[t] = None
                self.lost.pop(t, None)
                self.held += self.sizes[t]
        for t in (*op.inputs, *op.outputs):
            self.touched[t] = len(self.sequence)

    def _room(self, stack: list[int]) -> bool:
        """Evict until the op on top of the stack fits; False if it doesn't.

        Inputs that it reuses may be evicted, too: it allocates in their place. Tensors that nothing reads go
        first, except keys, which go last.
        """
        op = self.graph.ops[stack[-1]]
        fresh = sum(self.sizes[t] for t in op.outputs if not self.present[t])
        target = self.budget - fresh - op.workspace
        if self.held <= target:
            return True
        self._evict_dying(stack)
        due = self._due(stack)
        movable = self._movable(op)
        unread = [t for t in movable if t not in due and self._next_use(t) == _NEVER]
        keys = [t for t in unread if not self.deadline.passed and self._is_key(t)]
        for t in set(unread).difference(keys):
            self._evict(t)
        if self.held > target:
            victims = sorted((self._rank(t, due), t) for t in set(movable).difference(unread))
            self._evict_until(target, [t for _, t in victims])
        if self.held > target:
            self._evict_keys(keys, stack)
        return self.held <= target

    def _evict_keys(self, keys: list[int], stack: list[int]) -> None:
        """Evict the keys that nothing needs after the other evictions."""
        due = self._due(stack)
        for t in keys:
            if t not in due:
                self._evict(t)

    def _evict_dying(self, stack: list[int]) -> None:
        """Evict the inputs that the op on top of the stack reuses, and that nothing reads after it."""
        v = stack[-1]
        reused = [t for t in self.graph.ops[v].reuses if t in self.resident]
        reused = [t for t in reused if self._next_use(t) in (v, _NEVER) and len(self.uses[t]) < 2]
        due = self._due(stack[:-1]) if reused else {}
        for t in (t for t in reused if t not in due):
            self._evict(t)
            del self.lost[t]

    def _movable(self, op: Op) -> list[int]:
        """The resident tensors that take memory and that ``op`` neither makes nor needs while it runs."""
        held = {*op.inputs, *op.outputs}.difference(op.reuses)
        return [t for t in self.resident if self.sizes[t] and t not in held]

    def _evict_until(self, target: int, victims: list[int]) -> None:
        """Evict in this order until at most ``target`` bytes are held; then restore the superfluous ones."""
        chosen: list[int] = []
        reruns: set[int] = set()  # stays valid: every tensor evicted here can be recomputed
        for t in victims:
            if self.held <= target or self.deadline.passed:
                break
            if self._can_return(t, reruns):
                self._evict(t)
                chosen.append(t)
        for t in reversed(chosen):
            if self.held + self.sizes[t] <= target:
                self._restore(t)

    def _is_key(self, t: int) -> bool:
        """Whether ``t``, unread and not recomputable, allows to recompute more bytes than it holds."""
        if self._can_return(t, set()):
            return False
        unlocked, seen, stack = 0, {t}, [t]
        while stack:
            for v in self.readers.row(stack.pop()).tolist():
                op = self.graph.ops[v]
                for u in op.outputs if op.recomputable and v < self.now else ():
                    if u not in seen:
                        seen.add(u)
                        if not self.present[u] or self._next_use(u) == _NEVER:
                            stack.append(u)
                        elif self._next_use(u) < self.graph.n_ops:
                            unlocked += self.sizes[u]
        return unlocked > self.sizes[t]

    def _rank(self, t: int, due: dict[int, int]) -> tuple[int, float, int]:
        """Sort key of a victim: its score; graph outputs after other tensors, tensors read right now last."""
        moment = min(due.get(t, _NEVER), self._next_use(t))
        if moment <= self.now:
            return (2, -self.sizes[t], t)
        distance = len(self.sequence) - self.touched[t] if self.weights.stale else moment - self.now
        again = self._price(t)
        score = (
            math.log(self.sizes[t]) * self.weights.size
            + math.log(distance + 1) * self.weights.distance
            - math.log(again + 1e-12) * self.weights.cost
        )
        return (0 if moment < self.graph.n_ops or self.weights.outputs_too else 1, -score, t)

    def _price(self, t: int) -> float:
        """Cost of recomputing ``t``; shared ancestors may count twice."""
        v = self.producer[t]
        return self.costs[v] + sum(self.again[u] for u in self.graph.ops[v].inputs if not self.present[u])

    def _next_use(self, t: int) -> int:
        """The next op of the base order that reads ``t``; n_ops for a graph output, else _NEVER."""
        uses = self.uses[t]
        while uses and uses[-1] < self.now:
            uses.pop()
        return uses[-1] if uses else _NEVER

    def _due(self, stack: list[int]) -> dict[int, int]:
        """When each tensor is next read to recompute others, or by the ops on ``stack``."""
        due: dict[int, int] = {}
        heap: list[int] = []

        def wanted(v: int, moment: int) -> None:
            for u in self.graph.ops[v].inputs:
                if not self.present[u] and u not in due:
                    heapq.heappush(heap, -self.producer[u])
                due[u] = min(moment, due.get(u, _NEVER))

        for t in list(self.lost):
            due[t] = self._next_use(t)
            if due[t] == _NEVER:
                del due[t], self.lost[t]
            else:
                heapq.heappush(heap, -self.producer[t])
        for v in stack:
            wanted(v, self.now)
        seen = set(stack)
        while heap:
            v = -heapq.heappop(heap)
            if v not in seen:
                seen.add(v)
                wanted(v, min(due[t] for t in self.graph.ops[v].outputs if t in due))
        return due

    def _can_return(self, t: int, reruns: set[int]) -> bool:
        """Whether ``t`` could be recomputed from the other resident tensors.

        ``reruns`` are ops known to be able to run again; if ``t`` can be recomputed, its ops are added.
        """
        seen, stack = {self.producer[t]}, [self.producer[t]]
        while stack:
            v = stack.pop()
            if v in reruns:
                continue
            if not self.graph.ops[v].recomputable:
                return False
            for u in self.graph.ops[v].inputs:
                if not self.present[u] and self.producer[u] not in seen:
                    seen.add(self.producer[u])
                    stack.append(self.producer[u])
        reruns |= seen
        return True

    def _evict(self, t: int) -> None:
        self.again[t] = self._price(t)
        self.present[t] = False
        del self.resident[t]
        self.lost[t] = None
        self.held -= self.sizes[t]

    def _restore(self, t: int) -> None:
        self.present[t] = True
        self.resident[t] = None
        del self.lost[t]
        self.held += self.sizes[t]

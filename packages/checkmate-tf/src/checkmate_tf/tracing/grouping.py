"""Join heavy ops to groups, each of which becomes one op of the graph, and order the groups.

    group = a heavy op, preceded by producers whose results only the group reads

A producer joins if TensorFlow writes the result over the producer's output, since both then need one buffer,
or if the producer only prepares an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from itertools import pairwise

from checkmate_tf.ops.storages import TAKE_OVER, calls_functions, takes_over
from checkmate_tf.tracing.needs import SMALL, Buffer, Heavy

__all__ = ["groups_of", "in_sequence", "results_first"]

_CLOSE = 4
"""The longest distance, in heavy ops, between an op and the producer whose output it writes over."""


def groups_of(heavy: Sequence[Heavy], returned: Set[Buffer]) -> list[list[Heavy]]:
    """The groups of the heavy ops of a step, each at the place of its last op."""
    grouping = _Grouping(heavy=heavy, returned=returned)
    for k in range(len(heavy)):
        grouping.grow(k)
    return [[heavy[i] for i in group] for _, group in sorted(grouping.groups.items())]


class _Grouping:
    """Groups that grow op by op.

    Attributes:
        heavy: the heavy ops; below, an op is a number in this list.
        groups: last op of a group → its ops, in order.
        maker: buffer → the op that makes it.
        readers: op → the ops that read its buffers.
    """

    def __init__(self, heavy: Sequence[Heavy], returned: Set[Buffer]) -> None:
        self.heavy = heavy
        self.groups: dict[int, list[int]] = {}
        self.maker = {b: k for k, h in enumerate(heavy) for b in h.makes}
        self.readers: list[set[int]] = [set() for _ in heavy]
        for k in range(len(heavy)):
            for j in self._producers([k]):
                self.readers[j].add(k)
        self._is_returned = [not returned.isdisjoint(h.makes) for h in heavy]

    def grow(self, k: int) -> None:
        """Start the group of op k, and take in the groups that may join it, the latest first."""
        self.groups[k] = [k]
        tried: set[int] = set()
        while producers := self._producers(self.groups[k]) - tried:
            j = max(producers)
            tried.add(j)
            if self._is_only_for(j, k) and (self._is_written_over(j, k) or self._is_of_one_update(j, k)):
                self.groups[k] = sorted(self.groups.pop(j) + self.groups[k])

    def _producers(self, ops: Iterable[int]) -> set[int]:
        return {self.maker[b] for i in ops for b in self.heavy[i].reads if b in self.maker}

    def _is_only_for(self, j: int, k: int) -> bool:
        """Whether op j is the last of another group, and only the group of op k reads its buffers."""
        return j in self.groups and not self._is_returned[j] and self.readers[j] <= set(self.groups[k])

    def _is_written_over(self, j: int, k: int) -> bool:
        """Whether op k writes its output over the output of op j, the latest producer of its large inputs.

        It must follow closely, because the inputs of op j live until op k.
        """
        if k - j > _CLOSE or self.heavy[j].once:
            return False
        latest = self._latest_large_input(k)
        return (
            latest is not None
            and self.maker[latest] == j
            and (latest.maker, latest.number) in _taken_over(self.heavy[k])
            and sum(size for b, size in self.heavy[j].makes.items() if b != latest) < SMALL
        )

    def _latest_large_input(self, k: int) -> Buffer | None:
        made = [b for b in self.heavy[k].reads if b in self.maker]
        large = [b for b in made if self.heavy[self.maker[b]].makes[b] >= SMALL]
        return max(large, key=self.maker.__getitem__, default=None)

    def _is_of_one_update(self, j: int, k: int) -> bool:
        """Whether the group of op j only prepares the update that op k makes, right before it.

        The inputs of a group with an update are made once. So only element-wise ops join. The op that made
        the gradient does not: it reads activations. Nor does another update: the momenta need the gradient,
        the ops after them do not. An op that calls functions is not one update but many.
        """
        prepares = all(self.heavy[i].op.type in TAKE_OVER for i in self.groups[j])
        update = bool(self.heavy[k].overwrites) and not calls_functions(self.heavy[k].op)
        return update and prepares and j + 1 == self.groups[k][0]


def _taken_over(heavy: Heavy) -> set[tuple[str, int]]:
    """The tensors, by op and output, that a heavy op may write its output over."""
    inputs = [heavy.op.inputs[i] for i in takes_over(heavy.op)]
    return {(t.op.name, t.value_index) for t in inputs}


def results_first(groups: Sequence[list[Heavy]], returned: Set[Buffer]) -> list[list[Heavy]]:
    """The groups, reordered: results that do not depend on updates come first.

    Metrics may be traced after the updates. A metric reads results of the model, which a schedule may compute
    again; unless metrics come first, the updates wait for that, with all gradients held.
    """
    maker = {b: k for k, group in enumerate(groups) for h in group for b in h.makes}
    needs = [{maker[b] for h in group for b in h.reads if b in maker} - {k} for k, group in enumerate(groups)]
    updated = _updates_and_after(groups, needs)
    for j, k in pairwise(in_sequence(groups)):
        needs[k].add(j)
    results = {maker[b] for b in returned if b in maker and b.kind != "done"}  # all effects are waited for
    first = _with_needs(results - updated, needs)
    order = sorted(range(len(groups)), key=lambda k: (k not in first, k))
    return [groups[k] for k in order]


def in_sequence(groups: Sequence[Sequence[Heavy]]) -> list[int]:
    """The groups whose order must be kept."""
    return [k for k, group in enumerate(groups) if any(h.in_sequence for h in group)]


def _updates_and_after(groups: Sequence[Sequence[Heavy]], needs: Sequence[Set[int]]) -> set[int]:
    """The groups that update variables, and the groups that need their results."""
    found: set[int] = set()
    for k, group in enumerate(groups):
        if needs[k] & found or any(h.overwrites for h in group):
            found.add(k)
    return found


def _with_needs(groups: Iterable[int], needs: Sequence[Iterable[int]]) -> set[int]:
    """These groups and all groups that they need."""
    stack, found = list(groups), set[int]()
    while stack:
        k = stack.pop()
        if k not in found:
            found.add(k)
            stack.extend(needs[k])
    return found

"""Move the updates of a step as early as is safe, and turn each valid schedule of its graph into a program.

    schedule σ  ↦  copies in the order of σ, and values held until σ frees them

TensorFlow frees a buffer after its last reader. σ may free it later, or never, or make a second copy of it
while the first one is resident; the value is then held until σ frees it. A compute whose result nothing reads
runs, too; it does no harm if such a compute reads a variable after an overwrite.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from checkmate import DFGraph, Schedule
from checkmate.analysis import in_vain, late_reads, sequence_to_run, with_writes_settled
from checkmate.framework import late_frees
from checkmate_tf.running.addn_order import addn_holds, addn_starts
from checkmate_tf.running.program import Hold, Program, Value, program
from checkmate_tf.tracing.step_graph import TracedGraph

__all__ = ["OrderedStep"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedStep:
    """A step in the order that schedules start from.

    Attributes:
        traced: the step in the order in which it was traced.
        graph: the priced graph, its updates as early as is safe.
        order: op of ``graph`` → op of ``traced.graph``. Tensors keep their numbers; new ones have 0 bytes.
        starts: name of an ``AddN`` → the input that it starts with (:mod:`checkmate_tf.running.addn_order`).
    """

    traced: TracedGraph
    graph: DFGraph
    order: Sequence[int]
    starts: Mapping[str, int]

    @classmethod
    def of(cls, traced: TracedGraph, priced: DFGraph) -> OrderedStep:
        """Move the updates of a step as early as is safe; ``priced`` is its graph with costs."""
        graph, order = with_writes_settled(priced, traced.writes, traced.in_sequence)
        return cls(traced=traced, graph=graph, order=order, starts=addn_starts(traced))

    def on(self, traced: TracedGraph, graph: DFGraph) -> OrderedStep:
        """The same order for another trace of the step, whose tensors have other sizes."""
        return replace(self, traced=traced, graph=graph, starts=addn_starts(traced))

    @property
    def writes(self) -> Mapping[int, Sequence[int]]:
        """Op of ``graph`` → the tensors that it overwrites."""
        written = self.traced.writes
        return {k: written[v] for k, v in enumerate(self.order) if v in written}

    def lean(self, schedule: Schedule) -> Schedule:
        """A valid schedule without computes in vain, each tensor freed as early as is legal."""
        kept = sequence_to_run(self.graph, schedule.sequence.tolist(), self.writes)
        return Schedule.from_sequence(self.graph, kept)

    def program(self, schedule: Schedule) -> Program:
        """The program that follows a valid schedule to the letter, with the results of the step."""
        sequence = schedule.sequence.tolist()
        vain = in_vain(self.graph, sequence)
        late = {k for k, _ in late_reads(self.graph, sequence, self.writes)} if vain else ()
        found = program(self.traced, [self.order[v] for v in sequence], late, self.starts)
        found = replace(found, holds=tuple(self._holds(schedule, found)))
        holds = (*found.holds, *addn_holds(found))
        return replace(found, holds=holds, entire=bool(vain or holds))

    def _holds(self, schedule: Schedule, found: Program) -> Iterator[Hold]:
        """The values that a schedule holds beyond their last reader."""
        buffer_of = {t: b for b, t in self.traced.tensor_of.items() if b.kind == "output"}
        positions: dict[int, list[int]] = {}
        for k, v in enumerate(schedule.sequence.tolist()):
            positions.setdefault(v, []).append(k)
        ends = (*found.ends, len(found.copies))
        for k, tensors in late_frees(self.graph, schedule).items():
            for t in (t for t in tensors if self.graph.tensors[t].size):
                made = positions[int(self.graph.producer[t])]
                before = made[bisect_left(made, k) - 1]
                b = buffer_of[t]
                number = self.traced.lists.lends.get((b.maker, b.number), b.number)
                yield Hold(Value(_copy_of(b.maker, found, before), number), ends[k])


def _copy_of(op: str, found: Program, position: int) -> int:
    """The number of the copy of an op that belongs to a position of the sequence."""
    end = found.ends[position]
    return next(k for k in range(end, -1, -1) if found.copies[k].op.name == op)

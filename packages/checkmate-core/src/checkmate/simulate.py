"""The judge: it replays a schedule on its graph, and it alone decides on validity, cost and peak.

State: the set R of resident tensors, at first the graph inputs. Memory = fixed_size + Σ_{t ∈ R} |t|.

- compute(v): every input of v must be in R; if v is not recomputable it must not have run before. While it
  runs, memory is the memory of R plus **all** of its outputs (freshly allocated, even if an older copy is
  resident) plus its workspace, minus each input that v reuses and that is freed before the next compute:
  v allocates in its place. Afterwards its outputs are in R; older copies are dropped.
- free(t): t must be in R and not be a graph input.
- At the end every graph output must be in R.

This module imports nothing that makes schedules: the judge shares no code with the judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkmate.errors import InvalidScheduleError, Reason
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.text.markup import figure, outline, table
from checkmate.text.printable import cost_text, format_bytes

__all__ = ["Timeline", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Timeline:
    """The judge's record of a valid schedule, step by step.

    Attributes:
        graph: the graph.
        schedule: the schedule that was replayed.
        memory: bytes held while each step runs (a compute: with its outputs and workspace; a free: after
            it); int64, shape ``[len(schedule)]``, read-only.
        runs: number of computes of each op; int64, shape ``[n_ops]``, read-only.
        peak: the largest memory seen, in bytes, the state before the first step included.
        cost: sum of the costs of all computes, in the graph's cost unit.
    """

    graph: DFGraph
    schedule: Schedule
    memory: npt.NDArray[np.int64]
    runs: npt.NDArray[np.int64]
    peak: int
    cost: float

    @property
    def overhead(self) -> float:
        """``cost`` over the cost of computing every op once, minus 1; 0 if that cost is 0."""
        ideal = self.graph.ideal_cost
        return self.cost / ideal - 1.0 if ideal > 0 else 0.0

    @property
    def peak_step(self) -> int:
        """Index of the first step at which ``memory`` is largest; −1 for an empty schedule."""
        return int(self.memory.argmax()) if len(self.memory) else -1

    @property
    def peak_op(self) -> int | None:
        """The op that runs at ``peak_step``; None for an empty schedule.

        It is always an op: after a free, no more is held than while the last op before it ran.
        """
        return int(self.schedule.codes[self.peak_step]) if len(self.memory) else None

    def reused_at(self, step: int) -> frozenset[int]:
        """The inputs that are not held while the op at ``step`` runs, because it allocates in their place."""
        codes = self.schedule.codes
        runs = 0 <= step < len(codes) and codes[step] >= 0
        return frozenset(_reused(self.graph, codes, step) if runs else ())

    @property
    def recomputes(self) -> int:
        """Number of computes that were not the first of their op."""
        return int(np.maximum(self.runs - 1, 0).sum())

    def resident_at(self, step: int) -> frozenset[int]:
        """The tensors resident just before ``step`` (0 … len(schedule), the last being the end).

        Raises:
            IndexError: if ``step`` is out of range.
        """
        if not 0 <= step <= len(self.schedule):
            raise IndexError(f"step is {step}, must be within 0 … {len(self.schedule)}")
        resident = set(self.graph.inputs)
        for code in self.schedule.codes[:step].tolist():
            if code >= 0:
                resident.update(self.graph.ops[code].outputs)
            else:
                resident.discard(~code)
        return frozenset(resident)

    def _repr_html_(self) -> str:
        """The figures, and a picture of the memory over time."""
        rows = [
            ("peak", format_bytes(self.peak)),
            ("cost", cost_text(self.cost, self.graph.cost_unit)),
            ("overhead", f"{self.overhead:.2%}"),
            ("recomputed", f"{self.recomputes:,} runs"),
        ]
        picture = outline(self.memory, "Bytes held at each step of the schedule.")
        return figure("Timeline", table(rows, numbers=[1]), picture)

    def __repr__(self) -> str:
        """Short: peak, cost, overhead."""
        return f"<Timeline: peak {self.peak} bytes, cost {self.cost:.6g}, overhead {self.overhead:.2%}>"


def simulate(graph: DFGraph, schedule: Schedule) -> Timeline:  # noqa: C901 - one loop, read in one go
    """Replay ``schedule`` on ``graph``; see the module for the exact semantics.

    Raises:
        InvalidScheduleError: with the step, the op or tensor, and the reason.

    >>> from checkmate.model.graph import DFGraph
    >>> chain = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    >>> simulate(chain, Schedule.from_sequence(chain, [0, 1]))
    <Timeline: peak 6 bytes, cost 2, overhead 0.00%>
    """
    sizes = [t.size for t in graph.tensors]
    resident = bytearray(graph.n_tensors)
    pinned = bytearray(graph.n_tensors)
    for t in graph.inputs:
        resident[t] = pinned[t] = 1
    runs = [0] * graph.n_ops
    held = graph.base_size
    memory: list[int] = []
    reused: set[int] = set()  # inputs in whose place the latest compute allocated
    codes = schedule.codes.tolist()

    for step, code in enumerate(codes):
        if code >= 0:
            if code >= graph.n_ops:
                raise InvalidScheduleError(step, graph.op_label(code), Reason.UNKNOWN_OP)
            op = graph.ops[code]
            for t in op.inputs:
                if not resident[t]:
                    subject = f"{graph.op_label(code)}, input {graph.tensor_label(t)}"
                    raise InvalidScheduleError(step, subject, Reason.MISSING_INPUT)
            if runs[code] and not op.recomputable:
                raise InvalidScheduleError(step, graph.op_label(code), Reason.RECOMPUTED_ONCE_ONLY)
            runs[code] += 1
            reused = _reused(graph, codes, step)
            held -= sum(sizes[t] for t in reused)
            memory.append(held + sum(sizes[t] for t in op.outputs) + op.workspace)
            for t in op.outputs:
                held += 0 if resident[t] else sizes[t]
                resident[t] = 1
        else:
            t = ~code
            if t >= graph.n_tensors:
                raise InvalidScheduleError(step, graph.tensor_label(t), Reason.UNKNOWN_TENSOR)
            if pinned[t]:
                raise InvalidScheduleError(step, graph.tensor_label(t), Reason.FREED_INPUT)
            if not resident[t]:
                raise InvalidScheduleError(step, graph.tensor_label(t), Reason.NOT_RESIDENT)
            resident[t] = 0
            held -= 0 if t in reused else sizes[t]
            memory.append(held)

    for t in graph.outputs:
        if not resident[t]:
            raise InvalidScheduleError(len(memory), graph.tensor_label(t), Reason.LOST_OUTPUT)
    seen = np.array(memory, dtype=np.int64)
    counts = np.array(runs, dtype=np.int64)
    seen.flags.writeable = counts.flags.writeable = False
    return Timeline(
        graph=graph,
        schedule=schedule,
        memory=seen,
        runs=counts,
        peak=max(memory, default=graph.base_size),
        cost=math.fsum((counts * graph.costs).tolist()),
    )


def _reused(graph: DFGraph, codes: Sequence[int] | npt.NDArray[np.int64], step: int) -> set[int]:
    """The inputs that the op computed at ``step`` reuses: those freed before the next compute."""
    reuses: list[int] = graph.reuses.row(codes[step]).tolist()
    freed, after = set[int](), step + 1
    while reuses and after < len(codes) and codes[after] < 0:
        freed.add(~int(codes[after]))
        after += 1
    return freed.intersection(reuses)

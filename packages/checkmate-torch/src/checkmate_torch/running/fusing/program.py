"""Turn a schedule into a program of fused kernels within the same budget.

The program is another graph, with one op for each kernel and for each run that stays alone. The simulator
replays it, so that the code which runs has the peak that is predicted. A kernel is taken apart again if it
exceeds the budget or takes longer than its ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from checkmate import DFGraph, Op, Schedule, Solution, Timeline, simulate
from checkmate.units import format_bytes
from checkmate_torch.ops.recompute_rules import is_new_statistic
from checkmate_torch.running.fusing.kernel import FusedKernel
from checkmate_torch.running.fusing.measuring import Measuring
from checkmate_torch.running.fusing.windows import gathered
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["Fusion", "fused"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fusion:
    """A program of fused kernels.

    Attributes:
        schedule: the runs in the order of the program, each freed after its last reader.
        kernels: number of a run → the kernel that computes it and the runs after it.
        timeline: the simulator's replay: one step for each kernel, each run left alone, and each free.
    """

    schedule: Schedule
    kernels: Mapping[int, FusedKernel]
    timeline: Timeline

    def __str__(self) -> str:
        """A sentence for reports."""
        n_fused = sum(len(kernel.ops) for kernel in self.kernels.values())
        return (
            f"{n_fused} of {len(self.schedule.sequence)} runs are in {len(self.kernels)} fused kernels: the "
            f"peak of that program is {format_bytes(self.timeline.peak)}"
        )

    def solution(self, solution: Solution) -> Solution:
        """A solution with its runs in the order of the program."""
        return replace(solution, timeline=simulate(solution.problem.graph, self.schedule))


def fused(traced: TracedGraph, schedule: Schedule, budget: int, measuring: Measuring) -> Fusion:
    """Fuse ops of a schedule wherever that stays within the budget and, in measured seconds, is faster.

    ``traced`` has the cost of each op alone. The schedule's peak is within the budget, in bytes.
    """
    graph = traced.graph
    windows = gathered(traced, schedule.sequence.tolist())
    ordered = Schedule.from_sequence(graph, [op for window in windows for op in window])
    if simulate(graph, ordered).peak <= budget:
        schedule = ordered
    else:
        windows = [(op,) for op in schedule.sequence.tolist()]
    program = _FusedSchedule(traced, windows, measuring)
    timeline = program.timeline()
    while timeline.peak > budget and timeline.peak_op is not None and program.split(timeline.peak_op):
        timeline = program.timeline()
    return Fusion(schedule=schedule, kernels=program.by_run(), timeline=timeline)


class _FusedSchedule:
    """The windows of a schedule, and kernels for some of them."""

    def __init__(self, traced: TracedGraph, windows: Sequence[tuple[int, ...]], measuring: Measuring) -> None:
        self.traced, self.windows = traced, windows
        returned = (n for n in traced.forward_outputs if isinstance(n, Node))
        self.held = {traced.tensor_of[n] for n in returned if n in traced.tensor_of}
        found = self._kernels()
        profiles = zip(found, measuring.worthy(traced.graph, [*found.values()]), strict=True)
        self.profiles = {w: profile for w, profile in profiles if profile is not None}
        self.kernels = {w: found[w] for w in self.profiles}

    def _kernels(self) -> dict[int, FusedKernel]:
        """Number of a window → a kernel for it."""
        graph = self.traced.graph
        kernels: dict[int, FusedKernel] = {}
        done: set[int] = set()
        for w, (window, outlasting) in enumerate(
            zip(self.windows, _outlasting(graph, self.windows), strict=True)
        ):
            made = [t for v in window for t in self._returned(v, {*outlasting}, again=v in done)]
            if len(window) > 1 and made:
                kernels[w] = FusedKernel(self.traced, window, done, made)
            done.update(window)
        return kernels

    def _returned(self, v: int, outlasting: set[int], *, again: bool) -> list[int]:
        """The outputs of an op that its kernel returns; new running statistics only at the op's first run."""
        returned = []
        for t in self.traced.graph.ops[v].outputs:
            node = self.traced.source_of.get(t)  # None: a token, which has no value
            statistic = node is not None and is_new_statistic(node)
            needed = t in outlasting or (statistic and t in self.held)
            if node is not None and needed and not (statistic and again):
                returned.append(t)
        return returned

    def split(self, number: int) -> bool:
        """Take the kernel of an op of :meth:`timeline` apart; False if that op is no kernel."""
        return self.kernels.pop(self._units()[number][0], None) is not None

    def by_run(self) -> dict[int, FusedKernel]:
        """Number of a run → the kernel that starts with it."""
        found, run = {}, 0
        for w, window in enumerate(self.windows):
            if w in self.kernels:
                found[run] = self.kernels[w]
            run += len(window)
        return found

    def timeline(self) -> Timeline:
        """The simulator's replay of the program."""
        graph = self._graph()
        return simulate(graph, Schedule.from_sequence(graph, range(graph.n_ops)))

    def _units(self) -> list[tuple[int, tuple[int, ...]]]:
        """The program's ops as (number of a window, ops): a window with a kernel, or one op of another."""
        return [
            (w, part)
            for w, window in enumerate(self.windows)
            for part in ([window] if w in self.kernels else [(op,) for op in window])
        ]

    def _graph(self) -> DFGraph:
        """The program as a graph: each run is an op of its own, each copy of a tensor is a tensor."""
        graph, units = self.traced.graph, self._units()
        tensors = [graph.tensors[t] for t in graph.inputs]
        latest = {t: k for k, t in enumerate(graph.inputs)}  # tensor of the step → its latest copy
        ops: list[Op] = []
        for (w, part), outlasting in zip(units, _outlasting(graph, [part for _, part in units]), strict=True):
            op = graph.ops[part[0]]
            made: tuple[int, ...]
            reuses: tuple[int, ...]
            inputs = tuple(latest[t] for t in _read(graph, part))
            if w in self.kernels:
                made, reuses = tuple(outlasting), ()
                cost, workspace, _ = self.profiles[w]
            else:
                made, reuses = op.outputs, tuple(latest[t] for t in op.reuses)
                cost, workspace = op.cost, op.workspace
            outputs = tuple(range(len(tensors), len(tensors) + len(made)))
            tensors += [graph.tensors[t] for t in made]
            latest |= zip(made, outputs, strict=True)
            ops.append(
                replace(op, inputs=inputs, outputs=outputs, reuses=reuses, cost=cost, workspace=workspace)
            )
        return replace(
            graph,
            ops=tuple(ops),
            tensors=tuple(tensors),
            inputs=tuple(range(len(graph.inputs))),
            outputs=tuple(latest[t] for t in graph.outputs),
        )


def _read(graph: DFGraph, window: Sequence[int]) -> list[int]:
    """The tensors that a window reads and does not make before."""
    made: set[int] = set()
    read: dict[int, None] = {}
    for v in window:
        read |= dict.fromkeys(t for t in graph.ops[v].inputs if t not in made)
        made.update(graph.ops[v].outputs)
    return [*read]


def _outlasting(graph: DFGraph, windows: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """For each window the tensors that it makes and that are needed after it."""
    needed = set(graph.outputs)
    found: list[list[int]] = []
    for window in reversed(windows):
        made = list(dict.fromkeys(t for v in window for t in graph.ops[v].outputs))
        found.append([t for t in made if t in needed])
        needed.difference_update(made)
        needed.update(_read(graph, window))
    return found[::-1]

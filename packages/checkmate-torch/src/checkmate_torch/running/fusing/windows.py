"""Windows of a schedule: fusible ops that follow each other and read each other's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkmate import DFGraph
from checkmate_torch.running.fusing.fusible import is_fusible
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["gathered"]


def gathered(traced: TracedGraph, sequence: Sequence[int]) -> list[tuple[int, ...]]:
    """The runs of a schedule, those together that one kernel may compute.

    Between two ops that can't be fused, ops that read each other's results are a window. No op of a window
    reads one of another window of the same stretch, so that their order does not matter.

    Args:
        traced: the step.
        sequence: ops in the order of their runs, with repeats.

    Returns:
        the same runs as windows; an op that is not fused is a window of one.
    """
    graph = traced.graph
    fusible = [node is not None and is_fusible(node) for node in traced.nodes]
    windows: list[tuple[int, ...]] = []
    stretch: list[_Window] = []

    def close() -> None:
        windows.extend(tuple(graph_op for _, graph_op in window.runs) for window in stretch)
        stretch.clear()

    for position, op in enumerate(sequence):
        if not fusible[op]:
            close()
            windows.append((op,))
            continue
        if any(window.touches(graph.ops[op].outputs) for window in stretch):
            close()  # the op replaces a copy that the stretch has read or made
        stretch[:] = _with(stretch, _Window.of(position, op, graph))
    close()
    return windows


@dataclass(frozen=True, slots=True)
class _Window:
    """A window that may still grow.

    Attributes:
        runs: positions in the schedule, ascending, and their ops.
        made: the tensors that they make.
        read: the tensors that they read.
    """

    runs: tuple[tuple[int, int], ...]
    made: frozenset[int]
    read: frozenset[int]

    @classmethod
    def of(cls, position: int, op: int, graph: DFGraph) -> _Window:
        return cls(((position, op),), frozenset(graph.ops[op].outputs), frozenset(graph.ops[op].inputs))

    def touches(self, tensors: Sequence[int]) -> bool:
        return not (self.made | self.read).isdisjoint(tensors)

    def __or__(self, other: _Window) -> _Window:
        return _Window(tuple(sorted(self.runs + other.runs)), self.made | other.made, self.read | other.read)


def _with(stretch: Sequence[_Window], new: _Window) -> list[_Window]:
    """The windows of a stretch after another op, which joins those that made what it reads."""
    apart = []
    for window in stretch:
        if window.made.isdisjoint(new.read):
            apart.append(window)
        else:
            new = window | new
    return sorted([*apart, new], key=lambda window: window.runs[0])

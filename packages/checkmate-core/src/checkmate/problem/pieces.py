"""Ops of a graph that are pieces of one op: for people, they are that op, which runs several times.

    op of the graph ↦ the piece that it is, or None

The simulator, solvers and files know nothing of pieces. Reports get them beside a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.model.graph import DFGraph
from checkmate.simulate import Timeline

__all__ = ["WHOLE", "PieceOf", "Pieces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOf:
    """What an op of a graph is a piece of.

    Attributes:
        name: of the op that is cut; no other op that is cut has it.
        index: number of the piece, from 0.
        count: number of pieces.
    """

    name: str
    index: int
    count: int

    def __str__(self) -> str:
        """A name for people."""
        return f"{self.name}[{self.index + 1}/{self.count}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The ops of a graph that are pieces, and what its step costs without them; false if there are none.

    Attributes:
        of: for each op of the graph, what it is a piece of; None = it is whole. Empty = all are.
        plain_cost: cost of the step without pieces and without recomputation, in the graph's unit; None =
            that of running each op of the graph once.
    """

    of: tuple[PieceOf | None, ...] = ()
    plain_cost: float | None = None

    def __bool__(self) -> bool:
        """Whether there are pieces."""
        return any(self.of)

    def overhead(self, timeline: Timeline) -> float:
        """Extra cost of a schedule over the step without pieces and without recomputation, as a fraction."""
        if self.plain_cost is None:
            return timeline.overhead
        return timeline.cost / self.plain_cost - 1.0 if self.plain_cost > 0 else 0.0

    def whole_ops(self, graph: DFGraph) -> list[tuple[int, ...]]:
        """The ops of the graph, the pieces of one op together; in the order of the first of them.

        >>> pieces = Pieces(of=(None, *(PieceOf(name="mm", index=k // 2, count=2) for k in range(4))))
        >>> pieces.whole_ops(DFGraph.from_nodes(cost=[1] * 5, size=[1] * 5, deps=[[]] * 5))
        [(0,), (1, 2, 3, 4)]
        """
        found: dict[int | str, list[int]] = {}
        for v, piece in enumerate(self.of or [None] * graph.n_ops):
            found.setdefault(v if piece is None else piece.name, []).append(v)
        return [*map(tuple, found.values())]

    def piece(self, op: int) -> PieceOf | None:
        """What an op of the graph is a piece of."""
        return self.of[op] if self.of else None


WHOLE = Pieces()
"""No op is a piece."""

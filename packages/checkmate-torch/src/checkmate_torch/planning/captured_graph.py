"""A graph that Dynamo captured, and what it found around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from checkmate_torch.memory.plain_graph import EagerStep
from checkmate_torch.planning.calls import Call, earlier_bytes, n_outstanding
from checkmate_torch.tracing.loss_bytes import LossBytes

__all__ = ["CapturedGraph"]


@dataclass(slots=True, kw_only=True, eq=False)
class CapturedGraph:
    """A graph that Dynamo captured, and what it found around it.

    Attributes:
        inputs: example inputs; real tensors, except in a trace ahead.
        loss: bytes of the caller's loss; None = unknown.
        plain: the step as eager PyTorch runs it, if it could be followed.
        continues: whether the graph ends at a graph break, so that others follow.
        depth: the number of calls whose backward passes are due.
        earlier: bytes that those calls keep, beside the inputs.
        of_earlier: bytes of the inputs that those calls keep.
        n_outputs: the number of results that the caller gets.
        call: the planned call, once there is one.
    """

    inputs: Sequence[object]
    loss: int | LossBytes | None
    plain: EagerStep | None
    continues: bool
    depth: int = field(default_factory=n_outstanding)
    earlier: int = 0
    of_earlier: int = 0
    n_outputs: int = 0
    call: Call | None = None

    def __post_init__(self) -> None:
        """Ask for the bytes of earlier calls."""
        if self.depth:
            self.earlier = earlier_bytes(self.inputs)
            self.of_earlier = earlier_bytes() - self.earlier

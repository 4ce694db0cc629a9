"""The ways to run a schedule, and from an emitted graph to a callable.

    "eager"      each op is a kernel of PyTorch, with the same bits as without a budget
    "inductor"   neighbouring ops are fused into kernels that Inductor compiles; equal up to rounding

Both follow the schedule, recomputations and frees included. The callable takes its arguments in one list and
empties it, so that each argument is freed after its last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch.fx import GraphModule

from checkmate_torch.private import Boxed, boxed_code

__all__ = ["Lowering", "boxed", "checked_lowering"]

Lowering = Literal["eager", "inductor"]
_LOWERINGS: tuple[Lowering, ...] = ("eager", "inductor")


def checked_lowering(lowering: str) -> Lowering:
    """The lowering of a name.

    Raises:
        ValueError: if there is no such lowering.
    """
    for known in _LOWERINGS:
        if lowering == known:
            return known
    raise ValueError(f"no lowering {lowering!r}: there are {list(_LOWERINGS)}")


def boxed(gm: GraphModule, _example_inputs: Sequence[object]) -> Boxed:
    """Compile a graph to generated code that runs in its order."""
    return boxed_code(gm)

"""How an emitted graph becomes a callable: as generated Python code, or through Inductor.

    "eager"      the graph's order is the program; what is freed when is exactly the schedule
    "inductor"   fused kernels; what is computed twice stays so, but order and frees are Inductor's

Either takes its arguments in one list and empties it, so that arguments die when they may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from torch.fx import GraphModule

from checkmate_torch.private import Boxed, boxed_code, compile_with_inductor

__all__ = ["Lowering", "boxed", "checked_lowering", "lowered"]

Lowering = Literal["eager", "inductor"]
_LOWERINGS: tuple[Lowering, ...] = ("eager", "inductor")


def checked_lowering(lowering: str) -> Lowering:
    """What is meant by a name.

    Raises:
        ValueError: if there is no such lowering.
    """
    for known in _LOWERINGS:
        if lowering == known:
            return known
    raise ValueError(f"no lowering {lowering!r}: there are {list(_LOWERINGS)}")


def lowered(lowering: Lowering) -> tuple[Callable[..., Boxed], Callable[..., Boxed]]:
    """The compilers of the forward and of the backward graph: (graph, example inputs) ↦ a callable."""
    if lowering == "eager":
        return boxed, boxed
    return partial(compile_with_inductor, is_backward=False), partial(compile_with_inductor, is_backward=True)


def boxed(gm: GraphModule, _example_inputs: Sequence[object]) -> Boxed:
    """Generated code, in the order of the graph."""
    return boxed_code(gm)

"""From an emitted graph to a callable: generated Python code, or Inductor's.

    "eager"      runs in the graph's order, so that recomputations and frees are exactly the schedule's
    "inductor"   runs fused kernels; keeps recomputations, but orders and frees in its own way

Either callable takes its arguments in one list and empties it, so that each argument is freed after its last
use.
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
    """The lowering of a name.

    Raises:
        ValueError: if there is no such lowering.
    """
    for known in _LOWERINGS:
        if lowering == known:
            return known
    raise ValueError(f"no lowering {lowering!r}: there are {list(_LOWERINGS)}")


def lowered(lowering: Lowering) -> tuple[Callable[..., Boxed], Callable[..., Boxed]]:
    """The compilers of the forward and of the backward graph: (graph, example inputs) ↦ callable."""
    if lowering == "eager":
        return boxed, boxed
    return partial(compile_with_inductor, is_backward=False), partial(compile_with_inductor, is_backward=True)


def boxed(gm: GraphModule, _example_inputs: Sequence[object]) -> Boxed:
    """Compile a graph to generated code that runs in its order."""
    return boxed_code(gm)

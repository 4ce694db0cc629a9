"""How an emitted graph becomes a callable: as generated Python code, or through Inductor.

    "eager"      the graph's order is the program; what is freed when is exactly the schedule
    "inductor"   fused kernels; what is computed twice stays so, but order and frees are Inductor's

Either takes its arguments in one list and empties it, so that arguments die when they may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal
from unittest.mock import patch

from torch._guards import detect_fake_mode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import _BoxedCodeGen

__all__ = ["Lowering", "boxed", "checked_lowering", "lowered"]

Lowering = Literal["eager", "inductor"]
_LOWERINGS: tuple[Lowering, ...] = ("eager", "inductor")

Boxed = Callable[[list[object]], object]


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
    return _through_inductor(is_backward=False), _through_inductor(is_backward=True)


def boxed(gm: GraphModule, _example_inputs: Sequence[object]) -> Boxed:
    """Generated code, in the order of the graph."""
    gm.graph.set_codegen(_BoxedCodeGen())
    gm.recompile()
    forward = gm.forward

    def call(args: list[object]) -> object:
        return forward(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _through_inductor(*, is_backward: bool) -> Callable[..., Boxed]:
    """Inductor's compiler of one graph; random ops are eager's own, so that a replay draws equal numbers."""

    def compile(gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table

        # The order is the schedule's: looking for another one for the sake of memory undoes it.
        settings = {"fallback_random": True, "reorder_for_peak_memory": False}
        fake_mode = detect_fake_mode(example_inputs)  # the graph's constants are real tensors
        with config.patch(settings), patch.object(fake_mode, "allow_non_fake_inputs", True):
            decomposed = make_fx(gm, decomposition_table=select_decomp_table())(*example_inputs)
            return compile_fx_inner(decomposed, example_inputs, is_backward=is_backward)

    return compile

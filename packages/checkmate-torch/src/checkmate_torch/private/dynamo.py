"""Dynamo captures Python code as graphs, and keeps the code compiled from them.

Dynamo takes long to import, so the functions that need it import it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

__all__ = [
    "Compilation",
    "capture_errors",
    "captured_whole",
    "current_compilation",
    "forget",
    "graph_break",
    "graph_breaks",
    "splits_ddp_graphs",
]


class CaptureErrors(NamedTuple):
    """The errors that Dynamo raises while it captures.

    Attributes:
        backend: the backend raised ``inner_exception``.
        limit: more graphs would be needed than are allowed.
        unsupported: the code can't be captured as one graph.
    """

    backend: type[Any]
    limit: type[Exception]
    unsupported: tuple[type[Exception], ...]


class Compilation(NamedTuple):
    """Where Dynamo keeps compiled graphs: a code object, and the number of an isolated compilation of it."""

    code: CodeType
    region: int


def capture_errors() -> CaptureErrors:
    """The classes of Dynamo's errors."""
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, Unsupported, UserError

    return CaptureErrors(BackendCompilerFailed, FailOnRecompileLimitHit, (Unsupported, UserError))


def captured_whole(
    run: Callable[..., object],
    backend: Callable[..., object],
    *,
    most: int,
    dynamic: bool | None,
    dropped: set[Callable[..., object]],
) -> Callable[..., object]:
    """``torch.compile(run)``: one graph for each kind of inputs, at most ``most``, isolated from other calls.

    Calls of the functions in ``dropped`` are left out of the graphs.
    """
    compiled = torch.compile(  # type: ignore[call-overload]  # isolate_recompiles is not in the overloads
        run, backend=backend, fullgraph=True, dynamic=dynamic, isolate_recompiles=True
    )

    # The accumulated limit is of all models of a class; optimize_ddp would split the graph of a DDP module.
    settings = {"recompile_limit": most, "accumulated_recompile_limit": 2**31, "optimize_ddp": False}

    def call(*args: object, **kwargs: object) -> object:
        with torch._dynamo.config.patch({**settings, "ignore_logging_functions": dropped}):
            return compiled(*args, **kwargs)

    return call


def current_compilation() -> Compilation:
    """The compilation that calls the backend now."""
    from torch._C._dynamo.eval_frame import get_eval_frame_isolate_recompiles_id
    from torch._guards import TracingContext

    return Compilation(TracingContext.get().traced_code[0], get_eval_frame_isolate_recompiles_id())


def forget(compilation: Compilation) -> None:
    """Drop the graphs and guards of a compilation, which Dynamo keeps as long as the code object lives."""
    from torch._dynamo.eval_frame import _get_cache_entries_for_region
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for entry in _get_cache_entries_for_region(compilation.code, compilation.region):
        guards = entry.guard_manager
        if guards.extra_state is not None:
            guards.extra_state.invalidate(entry, DeletedGuardManagerWrapper("the compiled model is gone"))
            vars(guards).update(dict.fromkeys(vars(guards)))  # finalizers of classes still hold it, empty


def graph_break(gm: GraphModule) -> str | None:
    """The reason why a captured graph ends before the captured code does; None if it doesn't."""
    ended = getattr(gm, "compile_subgraph_reason", None)
    return str(ended.reason) if ended is not None and ended.graph_break else None


def graph_breaks() -> int:
    """The number of graph breaks in this process so far."""
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def splits_ddp_graphs() -> bool:
    """Whether Dynamo makes one graph for each bucket of a DDP module."""
    return torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"

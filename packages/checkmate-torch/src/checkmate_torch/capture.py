"""A model as a callable that Dynamo captures whole: one graph for each kind of inputs, or a clear error.

What Dynamo raises is said in our words: where it stumbled, and the way out.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from types import CodeType

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_isolate_recompiles_id
from torch._dynamo.eval_frame import _get_cache_entries_for_region
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, Unsupported, UserError
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._guards import TracingContext
from torch.fx import GraphModule

from checkmate import CheckmateError, UnsupportedModelError

__all__ = ["TooManyPlansError", "captured"]

_Place = tuple[CodeType, int]
"""A code object, and the number of a compilation that is isolated from the others of that code."""

_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")


class TooManyPlansError(CheckmateError, RuntimeError):
    """The inputs keep changing shape, so that every step would be planned anew."""


def captured(
    model: Callable[..., object],
    backend: Callable[..., object],
    *,
    max_plans: int = 1,
    dynamic: bool | None = False,
) -> Callable[..., object]:
    """A module's forward pass, or a function, captured as one graph for each kind of inputs.

    The callable raises ``UnsupportedModelError`` if the model can't be captured, :class:`TooManyPlansError`
    if it meets more than ``max_plans`` kinds of inputs, and what ``backend`` raises of Checkmate's errors.
    ``dynamic`` is that of :func:`torch.compile`. The callable holds ``model`` and ``backend``, and what is
    compiled dies with it; Dynamo itself would keep all of that for ever.
    """
    places: set[_Place] = set()
    captures = torch.compile(  # type: ignore[call-overload]  # isolate_recompiles is not in the overloads
        model, backend=_light(backend, places), fullgraph=True, dynamic=dynamic, isolate_recompiles=True
    )
    silent = _logging_methods()

    def run(*args: object, **kwargs: object) -> object:
        try:
            with torch._dynamo.config.patch(
                recompile_limit=max_plans,
                ignore_logging_functions=silent,
                optimize_ddp=False,  # which would split the graph
            ):
                return captures(*args, **kwargs)
        except BackendCompilerFailed as failure:
            if isinstance(failure.inner_exception, CheckmateError):
                raise failure.inner_exception.with_traceback(None) from None  # the frames are PyTorch's
            raise
        except FailOnRecompileLimitHit as failure:
            raise TooManyPlansError(
                f"more than {max_plans} kinds of inputs were met, each with a plan of its own: "
                "pad them to few shapes, or raise max_plans"
            ) from failure
        except (Unsupported, UserError) as failure:
            raise UnsupportedModelError(
                f"the model can't be captured as one graph: {_reason(failure)}\n"
                "A budget for the whole step needs one graph. Move that code out of forward, or plan each "
                'piece alone: torch.compile(model, backend="checkmate", options={"budget": …})'
            ) from failure

    run.backend = backend  # type: ignore[attr-defined]  # it must live as long as this callable
    weakref.finalize(run, _forget, places).atexit = False
    return run


def _light(backend: Callable[..., object], places: set[_Place]) -> Callable[..., object]:
    """A backend for Dynamo, which keeps it for ever: it refers to ``backend`` without holding it.

    Where Dynamo keeps what is compiled is added to ``places``.
    """
    planner = weakref.proxy(backend)

    def compile_graph(gm: GraphModule, example_inputs: Sequence[object]) -> object:
        outermost = TracingContext.get().traced_code[0]
        places.add((outermost, get_eval_frame_isolate_recompiles_id()))
        return planner(gm, example_inputs)

    return compile_graph


def _forget(places: set[_Place]) -> None:
    """Drop the compiled graphs and their guards, which Dynamo keeps as long as the class of a model lives."""
    for code, region in places:
        for entry in _get_cache_entries_for_region(code, region):
            guards = entry.guard_manager
            if guards.extra_state is not None:
                guards.extra_state.invalidate(entry, DeletedGuardManagerWrapper("the compiled model is gone"))
                vars(guards).update(dict.fromkeys(vars(guards)))  # finalizers of classes still hold it, empty
    places.clear()


def _reason(failure: Exception) -> str:
    """What Dynamo stumbled over and where, with those hints that name a setting."""
    lines = [line.strip() for line in str(failure).splitlines()]
    wanted = ("Explanation:", "Caused by:", "File ")
    kept = (line for line in lines[1:] if line.startswith(wanted) or "torch._dynamo.config." in line)
    return " ".join([*lines[:1], *kept])


def _logging_methods() -> set[Callable[..., object]]:
    """What a model logs is no reason to break its graph: calls of these are dropped where it is captured.

    Libraries add methods that log a message once.
    """
    names = (*_LEVELS, *(f"{level}_once" for level in _LEVELS))
    return {getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name)}

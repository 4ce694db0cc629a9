"""Capture a model whole with Dynamo: one graph for each kind of inputs, or a clear error.

Dynamo's errors are raised again in our words: where it failed, and the way out.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.fx import GraphModule

from checkmate import CheckmateError, UnsupportedModelError
from checkmate.framework import Options
from checkmate_torch.capture.attention_masks import answers_of_transformers
from checkmate_torch.capture.changing_numbers import OF_CHANGING_NUMBERS
from checkmate_torch.ops.device import refuse_graph_capture
from checkmate_torch.private import (
    Compilation,
    DataDependentError,
    capture_errors,
    captured_whole,
    current_compilation,
    forget,
    plain_call,
    unplanned,
)

__all__ = ["NotOneGraphError", "Stop", "TooManyPlansError", "captured", "captured_model", "stopped"]

_LIBRARIES = tuple(f'File "{path}' for path in (*torch.__path__, Path(__file__).parents[1]))
"""How lines of Dynamo's errors begin that name a place in PyTorch or in this package."""
_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
"""Methods that log: a call of one is left out of the graph instead of breaking it."""


class TooManyPlansError(CheckmateError, RuntimeError):
    """More kinds of inputs were met than ``max_plans`` allows."""


class Backend(Protocol):
    """A Dynamo backend that plans."""

    @property
    def options(self) -> Options:
        """How to plan."""
        ...

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object], /) -> object:
        """Compile a graph that Dynamo captured."""
        ...


class NotOneGraphError(UnsupportedModelError):
    """Dynamo can't capture the code as one graph."""


class Stop(CheckmateError):  # noqa: N818 - it ends a capture that worked
    """Raised by a backend to leave Dynamo with a value, before anything runs."""

    def __init__(self, value: object) -> None:
        super().__init__("stopped")
        self.value = value


def stopped(run: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """The value that the backend of a captured function stops with; None if it does not stop."""
    try:
        run(*args, **kwargs)
    except Stop as stop:
        return stop.value
    return None


def captured_model(backend: Backend, *, in_pieces: bool = False, **settings: Any) -> Callable[..., object]:
    """Capture the calls of a module, as :func:`captured` does; the callable gets the module first.

    A loss that the model computes itself is the first output of the one graph. Dynamo alone would return the
    parts of new objects in the order in which the model makes them: those of a cache before the loss.
    """
    if in_pieces:
        return captured(plain_call, backend, in_pieces=True, **settings)
    run = captured(_loss_first, backend, **settings)

    def call(module: nn.Module, *args: object, **kwargs: object) -> object:
        _, output = cast("tuple[object, object]", run(module, *args, **kwargs))
        return output

    return call


def _loss_first(module: nn.Module, *args: object, **kwargs: object) -> tuple[object, object]:
    """Where trainers look for the loss, and the output: item or attribute "loss", or the first of a tuple."""
    output: Any = plain_call(module, *args, **kwargs)
    if isinstance(output, dict):
        return output.get("loss"), output
    if isinstance(output, tuple | list):
        return (output[0] if output else None), output
    return getattr(output, "loss", None), output


def captured(
    function: Callable[..., object],
    backend: Backend,
    *,
    max_plans: int = 1,
    dynamic: bool | None = False,
    in_pieces: bool = False,
    read_masks: bool = True,
    label: str = "",
) -> Callable[..., object]:
    """Capture a function as one graph for each kind of inputs.

    The callable raises :class:`NotOneGraphError` if the code can't be captured (``in_pieces`` allows several
    graphs, and Python code between them), :class:`TooManyPlansError` if it meets more than ``max_plans``
    kinds of inputs, and any of Checkmate's errors that ``backend`` raises. Where an op fails, the code runs
    as it is, to raise its own error. ``dynamic`` means the same as in :func:`torch.compile`; captures with
    the same ``label`` share what is known of changing sizes. With ``read_masks``, facts of masks are read
    from real ones. The callable holds ``function`` and ``backend``, and the compiled graphs are dropped with
    it; Dynamo alone would keep all of that for ever.
    """
    errors = capture_errors()
    methods = vars(logging.Logger).items()  # libraries add some that log a message once
    compilations: set[Compilation] = set()
    captures = captured_whole(
        function,
        _light(backend, compilations),
        most=max_plans,
        dynamic=dynamic,
        dropped={log for name, log in methods if name.removesuffix("_once") in _LEVELS},
        in_pieces=in_pieces,
        unknown=OF_CHANGING_NUMBERS,
        answered=answers_of_transformers if read_masks else dict,
        label=label,
    )

    def run(*args: object, **kwargs: object) -> object:
        refuse_graph_capture()
        try:
            with nullcontext() if compilations else backend.options.planning("capturing the model"):
                return captures(*args, **kwargs)
        except errors.backend as failure:
            inner = failure.inner_exception
            if not in_pieces and isinstance(inner, (DataDependentError, errors.depends_on_data)):
                raise _not_one_graph(inner) from None
            if isinstance(inner, CheckmateError):
                raise inner.with_traceback(None) from None  # the frames are PyTorch's
            raise
        except errors.limit as failure:
            raise TooManyPlansError(
                f"more than {max_plans} kinds of inputs were met, each with a plan of its own: "
                "pad them to few shapes, or raise max_plans"
            ) from failure
        except errors.unsupported as failure:
            raise _not_one_graph(failure) from failure
        except errors.code as error:
            failed = error
        unplanned(function, *args, **kwargs)
        raise UnsupportedModelError(f"the model runs, but can't be traced: {_reason(failed)}") from failed

    run.backend = backend  # type: ignore[attr-defined]  # it must live as long as this callable
    weakref.finalize(run, _forget_all, compilations).atexit = False
    return run


def _light(backend: Backend, compilations: set[Compilation]) -> Callable[..., object]:
    """A backend that refers to ``backend`` without holding it: Dynamo keeps its backends for ever.

    Each compilation is added to ``compilations``.
    """
    planner = weakref.proxy(backend)

    def compile_graph(gm: GraphModule, example_inputs: Sequence[object]) -> object:
        compilations.add(current_compilation())
        if not torch.is_grad_enabled():  # a piece inside of no_grad or of an autograd.Function
            return gm.forward
        return planner(gm, example_inputs)

    return compile_graph


def _forget_all(compilations: set[Compilation]) -> None:
    for compilation in compilations:
        forget(compilation)
    compilations.clear()


def _not_one_graph(failure: Exception) -> NotOneGraphError:
    return NotOneGraphError(
        f"the model can't be captured as one graph: {_reason(failure)}\n{_way_out(failure)}"
    )


def _way_out(failure: Exception) -> str:
    """How code that can't be captured as one graph may be changed."""
    if "backwards hooks" in str(failure):
        return (
            "A backward hook can be one of a module around the planned one, as nn.Sequential(model). "
            "Hooks of parameters and of outputs change no plan"
        )
    return "A budget for the whole step needs one graph: move that code out of forward"


def _reason(failure: Exception) -> str:
    """The message of a Dynamo error, with the place in the user's code and the hints that name a setting."""
    lines = [line.strip() for line in str(failure).splitlines()]
    wanted = ("Explanation:", "Caused by:", "File ")
    lines[1:] = [line for line in lines[1:] if not line.startswith(_LIBRARIES)]
    kept = (line for line in lines[1:] if line.startswith(wanted) or "torch._dynamo.config." in line)
    return " ".join([*lines[:1], *kept])

"""Dynamo captures Python code as graphs, and keeps the code compiled from them.

Dynamo takes long to import, so the functions that need it import it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext
from contextvars import ContextVar
from functools import cache
from inspect import signature
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.fx import GraphModule

from checkmate_torch.private.known_inputs import Answers, answer_functions, answers, reading_once

__all__ = [
    "OVERLOOKS_FREEZING",
    "Compilation",
    "capture_errors",
    "captured_whole",
    "current_compilation",
    "forget",
    "graph_break",
    "graph_breaks",
    "has_hooks",
    "in_place",
    "inputs_of_modules",
    "is_captured",
    "is_chosen",
    "on_recompile_limit",
    "original_of",
    "passing_dynamo",
    "plain_call",
    "set_in_place",
    "splits_ddp_graphs",
    "unplanned",
    "unplanned_call",
]


_ISOLATES = "isolate_recompiles" in (torch.compile.__kwdefaults__ or {})
OVERLOOKS_FREEZING = not _ISOLATES
"""Whether Dynamo's guards overlook that a tensor's ``requires_grad`` has changed, as before PyTorch 2.13."""
_numbers = itertools.count(1)
_capturing: ContextVar[bool] = ContextVar("_capturing", default=False)
_settings: ContextVar[dict[str, object] | None] = ContextVar("_settings", default=None)
"""Of Dynamo, for what it captures now."""


class CaptureErrors(NamedTuple):
    """The errors that Dynamo raises while it captures.

    Attributes:
        backend: the backend raised ``inner_exception``.
        limit: more graphs would be needed than are allowed.
        unsupported: the code can't be captured as one graph.
        code: an op of the code failed on fake tensors.
        depends_on_data: a size that depends on data would have to be known.
    """

    backend: type[Any]
    limit: type[Exception]
    unsupported: tuple[type[Exception], ...]
    code: type[Exception]
    depends_on_data: type[Exception]


class Compilation(NamedTuple):
    """Where Dynamo keeps compiled graphs: a code object, and the number of an isolated compilation of it.

    PyTorch before 2.13 does not isolate: all compilations of a code object are one, with ``region`` None.
    """

    code: CodeType
    region: int | None


def capture_errors() -> CaptureErrors:
    """The classes of Dynamo's errors."""
    from torch._dynamo import exc
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode as DependsOnData

    unsupported = exc.Unsupported, exc.UserError, DependsOnData
    return CaptureErrors(
        exc.BackendCompilerFailed,
        exc.FailOnRecompileLimitHit,
        unsupported,
        exc.TorchRuntimeError,
        DependsOnData,
    )


def captured_whole(
    run: Callable[..., object],
    backend: Callable[..., object],
    *,
    most: int,
    dynamic: bool | None,
    dropped: Set[Callable[..., object]],
    in_pieces: bool,
    unknown: Mapping[Callable[..., object], tuple[str, Callable[..., object]]],
    answered: Callable[[], Answers],
    label: str = "",
) -> Callable[..., object]:
    """``torch.compile(run)``: one graph for each kind of inputs, at most ``most``, isolated from other calls.

    Calls of the functions in ``dropped`` are left out of the graphs. ``in_pieces`` allows several graphs for
    one kind of inputs, with Python code between them. ``unknown``: function → an argument, and the function
    that runs instead where that is a number known at run time only. ``answered``: the functions that ask what
    inputs hold, and their answers. ``label`` as in :func:`_with_own_code`.
    """
    from torch._dynamo.symbolic_convert import TensorifyState

    logging.getLogger("torch._dynamo.convert_frame").addFilter(_is_news)  # the same filter is added once
    logging.getLogger("torch._dynamo.variables.tensor").addFilter(_is_of_others)
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_not_raised)
    for function, (name, instead) in unknown.items():
        _replace_where_unknown(function, name, instead)
    answer_functions()
    _apply_settings()
    run = _with_own_code(run, label)
    isolated = {"isolate_recompiles": True} if _ISOLATES else {}
    compiled = torch.compile(run, backend=backend, fullgraph=not in_pieces, dynamic=dynamic, **isolated)  # type: ignore[call-overload]

    settings = {
        "recompile_limit": most,
        "accumulated_recompile_limit": 2**31,  # of all captures of a model
        "allow_rnn": not in_pieces,  # as one graph only: see checkmate_torch.capture.recurrent_ops
        "fail_on_recompile_limit_hit": True,
        "skip_nnmodule_hook_guards": False,  # a hook that is registered later is called
        "allow_unspec_int_on_nn_module": dynamic is not False,  # a counter needs no new graph at each call
        "optimize_ddp": False,  # it would split the graph of a DDP module
        "ignore_logging_functions": _Functions.fromkeys(dropped),
    }
    if hasattr(torch._dynamo.config, "trace_autograd_ops"):
        settings["trace_autograd_ops"] = True  # gradients taken by forward are ops like others

    def call(*args: object, **kwargs: object) -> object:
        known = answered()
        token, given, chosen = _capturing.set(True), answers.set(known), _settings.set(settings)
        once = reading_once() if known and not in_pieces else nullcontext()  # pieces: code between may write
        TensorifyState.clear()  # numbers that another model's graph could not take as inputs
        try:
            with once:
                return compiled(*args, **kwargs)
        finally:
            _settings.reset(chosen)
            answers.reset(given)
            _capturing.reset(token)

    return call


@cache
def _apply_settings() -> None:
    """Let Dynamo apply :data:`_settings` when it captures; at each call, that would take 0.07 ms."""
    from torch._dynamo.convert_frame import CatchErrorsWrapper

    capture: Any = CatchErrorsWrapper.__call__

    def apply(self: Any, *args: Any) -> Any:
        settings = _settings.get()
        with nullcontext() if settings is None else torch._dynamo.config.patch(settings):
            return capture(self, *args)

    CatchErrorsWrapper.__call__ = apply  # type: ignore[assignment, method-assign]


def _replace_where_unknown(
    function: Callable[..., object], name: str, instead: Callable[..., object]
) -> None:
    """Let captures call ``instead`` where an argument of a function is a number known at run time only."""
    from torch._dynamo.variables import UserFunctionVariable
    from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    accepted = signature(instead)

    def handle(_: object, translator: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            given = accepted.bind(*args, **kwargs).arguments
        except TypeError:  # of the user's call, or of one that is not known here
            return None
        if not (_capturing.get() and isinstance(given.get(name), SymNodeVariable)):
            return None
        inlined: Any = UserFunctionVariable(cast("FunctionType", instead))
        return inlined.call_function(translator, args, kwargs)

    if getattr(torch.Tensor, function.__name__, None) is function:
        method = f"method_{function.__name__}"
        setattr(TensorVariable, method, lambda x, tx, *rest, **kwargs: handle(x, tx, x, *rest, **kwargs))
    TorchInGraphFunctionVariable._get_handlers().setdefault(function, handle)


class _Functions(dict[Callable[..., object], None]):
    """Functions as a setting of Dynamo that is logged as empty: PyTorch 2.11 can't log functions as JSON."""

    def items(self) -> Any:
        return {}.items()


def _with_own_code(run: Callable[..., object], label: str) -> Callable[..., object]:
    """A copy of a function with another code object, and the label as its name, by default another one.

    For each code object Dynamo counts graphs; for each name it remembers which sizes have changed.
    """
    if not isinstance(run, FunctionType):
        return run
    code = run.__code__.replace(co_name=label or f"{run.__name__}_{next(_numbers)}")
    twin = FunctionType(code, run.__globals__, code.co_name, run.__defaults__, run.__closure__)
    twin.__kwdefaults__ = run.__kwdefaults__
    return twin


def _is_news(record: logging.LogRecord) -> bool:
    """Whether Dynamo logs something that the caller of :func:`captured_whole` does not report."""
    return not (_capturing.get() and _names_limit(record))


def _is_not_raised(record: logging.LogRecord) -> bool:
    """Whether a record is of no error that the caller of :func:`captured_whole` gets anyway."""
    return not (_capturing.get() and record.exc_info)


def _is_of_others(_: logging.LogRecord) -> bool:
    """Whether Dynamo logs outside of our captures; inside, the reason for pieces is warned of once."""
    return not _capturing.get()


def _names_limit(record: logging.LogRecord) -> bool:
    return "recompile_limit" in record.getMessage()


def is_chosen(backend: str) -> bool:
    """Whether a call of ``torch.compile`` has named this backend."""
    from torch._dynamo.backends import registry

    return backend in registry._COMPILER_FNS


def on_recompile_limit(tell: Callable[[], None]) -> None:
    """Call ``tell`` when Dynamo stops capturing some code, as it needs too many graphs.

    Code that :func:`captured_whole` captures is left out: there an error says so.
    """

    def listen(record: logging.LogRecord) -> bool:
        if not _capturing.get() and _names_limit(record):
            tell()
        return True

    logging.getLogger("torch._dynamo.convert_frame").addFilter(listen)


def is_captured() -> bool:
    """Whether :func:`captured_whole` is capturing the calling code, or a planned model's own code runs."""
    return _capturing.get()


def plain_call(module: nn.Module, *args: object, **kwargs: object) -> object:
    """Call a module with its hooks, past any callable that replaces its calls in place."""
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def unplanned(run: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Call a function; what it calls is not planned."""
    token = _capturing.set(True)
    try:
        return run(*args, **kwargs)
    finally:
        _capturing.reset(token)


def unplanned_call(module: nn.Module, *args: object, **kwargs: object) -> object:
    """As :func:`plain_call`, past any callable that replaces ``forward``, too."""
    return unplanned(plain_call, module, *args, **kwargs)


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module does more than its ``forward``."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in tables)


def in_place(module: nn.Module) -> Callable[..., object] | None:
    """The callable that replaces calls of a module in place, as :meth:`nn.Module.compile` sets it."""
    return vars(module).get("_compiled_call_impl")


def set_in_place(module: nn.Module, call: Callable[..., object] | None) -> None:
    """Replace calls of a module in place, or restore them; a copy or pickle of the module leaves that out."""
    if call is not None:
        vars(module)["_compiled_call_impl"] = call
    else:
        vars(module).pop("_compiled_call_impl", None)


def original_of(module: nn.Module) -> nn.Module | None:
    """The module that :func:`torch.compile` wrapped in this one; None for others."""
    from torch._dynamo.eval_frame import OptimizedModule

    return module._orig_mod if isinstance(module, OptimizedModule) else None


def passing_dynamo(error: Exception) -> Exception:
    """A copy of an error, in a subclass of its class, that Dynamo passes to the caller unchanged."""
    from torch._dynamo.exc import ShortenTraceback

    kind = type(error)
    passing = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    twin: Exception = passing.__new__(passing, *error.args)
    vars(twin).update(vars(error), first_useful_frame=None)
    return twin


def current_compilation() -> Compilation:
    """The compilation that calls the backend now."""
    from torch._C._dynamo import eval_frame
    from torch._guards import TracingContext

    region = eval_frame.get_eval_frame_isolate_recompiles_id() if _ISOLATES else None
    return Compilation(TracingContext.get().traced_code[0], region)


def forget(compilation: Compilation) -> None:
    """Drop the graphs and guards of a compilation, which Dynamo keeps as long as the code object lives."""
    from torch._dynamo import eval_frame
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    if compilation.region is None:
        entries = eval_frame._debug_get_cache_entry_list(compilation.code)
    else:
        entries = eval_frame._get_cache_entries_for_region(compilation.code, compilation.region)
    for entry in entries:
        guards = entry.guard_manager
        if guards.extra_state is not None:
            guards.extra_state.invalidate(entry, DeletedGuardManagerWrapper("the compiled model is gone"))
            vars(guards).update(dict.fromkeys(vars(guards)))  # finalizers of classes still hold it, empty


def graph_break(gm: GraphModule) -> str | None:
    """The reason why a captured graph ends before the captured code does; None if it doesn't."""
    ended = getattr(gm, "compile_subgraph_reason", None)
    return str(ended.reason) if ended is not None and ended.graph_break else None


def inputs_of_modules(gm: GraphModule) -> list[int]:
    """The inputs of a captured graph, by number, that are attributes of modules not of torch.nn."""
    found = []
    for k, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        kind = getattr(getattr(node.meta.get("grapharg"), "source", None), "guard_source", None)
        kind = kind() if callable(kind) else kind  # a method before PyTorch 2.13
        if kind is not None and kind.is_unspecialized_nn_module():
            found += [] if kind.is_unspecialized_builtin_nn_module() else [k]
    return found


def graph_breaks() -> int:
    """The number of graph breaks in this process so far."""
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def splits_ddp_graphs() -> bool:
    """Whether Dynamo makes one graph for each bucket of a DDP module."""
    return torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"

"""Every private name of PyTorch that this package uses, and nothing else.

PyTorch has no public way to trace the forward and backward pass as one graph, to choose what is kept between
them, or to see each allocation. Whatever depends on PyTorch's release belongs here too. Dynamo, Inductor and
the symbolic shapes take long to import, so the functions that need them import them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _autograd
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
    _ExtraFields_Allocation,
    _ProfilerEvent,
)
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    InputMutationAOTOutput,
    PlainAOTInput,
    SavedForBackwardsAOTOutput,
    TangentAOTInput,
)
from torch._ops import OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx import GraphModule
from torch.fx.graph import _BoxedCodeGen
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

if TYPE_CHECKING:
    import sympy

__all__ = [
    "Boxed",
    "Compilation",
    "FakeTensor",
    "FakeTensorMode",
    "GradAOTOutput",
    "InputMutationAOTOutput",
    "OpOverload",
    "PlainAOTInput",
    "ProfilerEvent",
    "SavedForBackwardsAOTOutput",
    "TangentAOTInput",
    "active_ddp",
    "argument_names",
    "boxed_code",
    "capture_errors",
    "captured_whole",
    "compile_joint",
    "compile_with_inductor",
    "cpu_allocations",
    "current_compilation",
    "current_value",
    "declared_maximum",
    "fake_mode",
    "fake_mode_of",
    "forget",
    "graph_break",
    "graph_breaks",
    "is_mutable",
    "limit",
    "mark_boxed",
    "profiler_is_running",
    "registries",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "sleep_on_gpu",
    "specialized",
    "splits_ddp_graphs",
    "start_profiler",
    "stop_profiler",
    "storage_id",
    "store_of",
    "symbols_in",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "unfaked",
    "value_at",
]

Boxed = Callable[[list[object]], object]

# Dynamo captures Python code as graphs, and keeps what is compiled from them.


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


# AOTAutograd traces the backward pass of a captured graph. It describes inputs and outputs in meta["desc"].


def compile_joint(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    partition: Callable[..., tuple[GraphModule, GraphModule]],
    forward: Callable[..., Boxed],
    backward: Callable[..., Boxed],
) -> Callable[..., object]:
    """Trace forward and backward pass of a captured graph as one, split that graph, and compile both parts.

    ``partition`` gets the joint graph, its inputs, and the keyword ``num_fwd_outputs``; ``forward`` and
    ``backward`` get a part and its example inputs.
    """
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=partition)
    with torch._functorch.config.patch(donated_buffer=False):  # so that retain_graph=True works
        return compiler(gm, example_inputs)


def mark_boxed(call: Boxed) -> Boxed:
    """Mark a callable for AOTAutograd as one that takes its arguments in one list and empties it."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


# FX and Inductor turn graphs into callables.


def boxed_code(gm: GraphModule) -> Boxed:
    """The graph as generated Python code that takes its arguments in one list and empties it."""
    gm.graph.set_codegen(_BoxedCodeGen())
    gm.recompile()
    forward = gm.forward
    return mark_boxed(lambda args: forward(args))  # a method takes no attributes


def compile_with_inductor(gm: GraphModule, example_inputs: Sequence[Any], *, is_backward: bool) -> Boxed:
    """Compile a graph by Inductor. Random ops stay PyTorch's own, so that a replay draws equal numbers."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    # The order is the schedule's: Inductor's own search for an order that takes less memory undoes it.
    settings = {"fallback_random": True, "reorder_for_peak_memory": False}
    mode = fake_mode_of(example_inputs)  # the graph's constants are real tensors
    with config.patch(settings), patch.object(mode, "allow_non_fake_inputs", True):
        decomposed = make_fx(gm, decomposition_table=select_decomp_table())(*example_inputs)
        return compile_fx_inner(decomposed, example_inputs, is_backward=is_backward)


# Fake tensors have shapes and no memory.


def fake_mode() -> FakeTensorMode:
    """A mode in which new tensors are fake; ops may also take real ones."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_mode_of(values: Sequence[object]) -> FakeTensorMode | None:
    """The mode that is on, or else that of the fake tensors among the values; None without either."""
    return torch._guards.detect_fake_mode(values)


unfaked = unset_fake_temporarily
"""Context manager: tensors made in its block are real, although a fake mode is on outside."""


# Symbolic shapes: sizes that may change from call to call.


def symbols_in(size: torch.SymInt) -> set[sympy.Symbol]:
    """The symbols in the formula of a size."""
    return set(size.node.expr.free_symbols)


def declared_maximum(size: torch.SymInt, symbol: sympy.Symbol) -> int | None:
    """The largest value that a symbol of a size may take; None if there is no maximum."""
    import sympy
    from torch.utils._sympy.numbers import int_oo

    known = size.node.shape_env.var_to_range.get(symbol)
    return None if known is None or known.upper in (int_oo, sympy.oo) else int(known.upper)


def current_value(size: torch.SymInt, symbol: sympy.Symbol) -> int:
    """The value of a symbol of a size in this call; no guard is added.

    Raises:
        ValueError: if it depends on data.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        return int(size.node.shape_env.guarding_hint_or_throw(symbol))
    except GuardOnDataDependentSymNode as error:
        raise ValueError(f"{symbol} is not known before") from error


def limit(size: torch.SymInt, symbol: sympy.Symbol, most: int) -> None:
    """Add a guard: the graph is only called where a symbol of a size is at most ``most``."""
    import sympy

    size.node.shape_env.evaluate_expr(sympy.Le(symbol, most))


def value_at(size: torch.SymInt, values: Mapping[sympy.Symbol, int]) -> int:
    """The size for given values of its symbols."""
    return int(size.node.expr.xreplace(values))


def specialized(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool:
    """The number that a symbol represents in this call, guarded: another number means another graph."""
    node = value.node
    if isinstance(value, torch.SymInt):
        return int(node.guard_int("", 0))
    if isinstance(value, torch.SymFloat):
        return float(node.guard_float("", 0))
    return bool(node.guard_bool("", 0))


# Operators and their schemas.


def argument_names(op: OpOverload) -> list[str]:
    """The names of an operator's arguments, in order."""
    return [argument.name for argument in op._schema.arguments]


def is_mutable(op: OpOverload) -> bool:
    """Whether an operator overwrites one of its arguments."""
    return bool(op._schema.is_mutable)


# The profiler sees each allocation.

ProfilerEvent = _ProfilerEvent
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"
"""Above every severity: some releases of PyTorch log each start and stop on stderr."""


def profiler_is_running() -> bool:
    """Whether a profiler records in this process."""
    return bool(_autograd._profiler_enabled())


def start_profiler() -> None:
    """Record the allocations of this thread, and of autograd on its behalf, and no ops."""
    # Scopes choose the functions to record beside allocations: this one never runs in eager code.
    config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
    activities = {ProfilerActivity.CPU}
    chosen = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = chosen if chosen is not None else _SILENT
    try:
        _autograd._prepare_profiler(config, activities)
    finally:
        if chosen is None:
            del os.environ[_LOG_LEVEL]
    _autograd._enable_profiler(config, activities, {RecordScope.STATIC_RUNTIME_OP})  # type: ignore[call-arg]


def stop_profiler() -> list[ProfilerEvent]:
    """Stop recording; the recorded events as trees."""
    return _autograd._disable_profiler().experimental_event_tree()


def cpu_allocations(tree: Sequence[ProfilerEvent]) -> Iterator[tuple[int, int, int]]:
    """(time in ns, address, signed bytes) of every CPU allocation event, parents before children."""
    for event in tree:
        fields = event.extra_fields
        if isinstance(fields, _ExtraFields_Allocation) and fields.device.type == "cpu":
            yield event.start_time_ns, fields.ptr, fields.alloc_size
        yield from cpu_allocations(event.children)


# Process groups, modules, storages, and the GPU.


def active_ddp() -> DistributedDataParallel | None:
    """The DDP module that is running forward, if one is."""
    return DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-any-return,no-untyped-call]


def store_of(group: dist.ProcessGroup | None) -> Any:
    """The key-value store through which the ranks of a group found each other; None = the default group."""
    return dist.distributed_c10d._get_process_group_store(group or dist.distributed_c10d._get_default_group())


def registries(module: nn.Module) -> dict[str, object]:
    """The tables in which a module keeps parameters, buffers and submodules: attribute name → table."""
    names = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    return {name: getattr(module, name) for name in names}


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that identifies a storage, real or fake, as long as it lives."""
    return int(storage._cdata)


def sleep_on_gpu(cycles: int) -> None:
    """Keep the current CUDA stream busy for a number of cycles, so that later kernels queue up."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

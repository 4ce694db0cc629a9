"""Private names of PyTorch for operators, random states, process groups, modules, storages, the GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._ops import OpOverload
from torch._prims import rng_prims
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _use_grad_for_differentiable
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten
from torch.utils.checkpoint import checkpoint, noop_context_fn

__all__ = [
    "OpOverload",
    "WeakStorage",
    "active_ddp",
    "argument_names",
    "autocast_on_cpu",
    "autograd_inside_of_op",
    "in_backward",
    "in_place_form",
    "is_checkpoint",
    "is_mutable",
    "is_sole_gradient",
    "is_transformed",
    "parameters_of",
    "registries",
    "run_and_save_rng_state",
    "run_checkpoint",
    "run_with_rng_state",
    "saves_are_hooked",
    "sleep_on_gpu",
    "step_without_wrappers",
    "storage_id",
    "store_of",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]

_SWITCHES_GRADIENTS = _use_grad_for_differentiable(lambda _: None).__code__


def argument_names(op: OpOverload) -> list[str]:
    """The names of an operator's arguments, in order."""
    return [argument.name for argument in op._schema.arguments]


@contextmanager
def autocast_on_cpu() -> Iterator[None]:
    """Within the block, ``torch.autocast("cuda", …)`` casts tensors of the CPU instead of doing nothing."""
    autocast = torch.amp.autocast_mode.autocast
    enter = autocast.__init__

    @wraps(enter)
    def of_cpu(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *rest: Any, **others: Any
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        enter(self, device_type, dtype, *rest, **others)

    with patch.object(autocast, "__init__", of_cpu):
        yield


@contextmanager
def autograd_inside_of_op() -> Iterator[None]:
    """Within the block, autograd records even in the code of an operator, which runs below autograd.

    PyTorch's own kernels run there, even while AOTAutograd traces and would run decompositions in Python.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "ADInplaceOrView", "AutogradOther"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, name))
    guard = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
    with guard, torch._C._DisablePythonDispatcher(), torch.enable_grad():
        yield


def in_place_form(op: OpOverload) -> OpOverload | None:
    """The form of an operator that overwrites its first argument; None if no such form has a kernel."""
    packet = getattr(getattr(torch.ops, op.namespace), f"{op._opname}_", None)
    form = getattr(packet, op._overloadname, None)
    if not isinstance(form, OpOverload):
        return None
    name, keys = str(form._schema.name), ("CPU", "CUDA", "CompositeExplicitAutograd")
    name += f".{form._overloadname}" * (form._overloadname != "default")
    return form if any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys) else None


def is_mutable(op: OpOverload) -> bool:
    """Whether an operator overwrites one of its arguments."""
    return bool(op._schema.is_mutable)


def in_backward() -> bool:
    """Whether autograd runs a backward pass that calls this code."""
    return bool(torch._C._current_graph_task_id() >= 0)


def is_checkpoint(target: object) -> bool:
    """Whether a captured call is one of ``torch.utils.checkpoint.checkpoint``."""
    return target is torch.ops.higher_order.tag_activation_checkpoint


def run_and_save_rng_state(op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a random op; return the RNG state of its device from before, and the op's results."""
    with _device_of(args, kwargs):
        return rng_prims.run_and_save_rng_state(op, *args, **kwargs)


def run_with_rng_state(state: torch.Tensor, op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a random op from a saved RNG state; the device's own state is unchanged."""
    with _device_of(args, kwargs):
        return rng_prims.run_with_rng_state(state, op, *args, **kwargs)


def _device_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Make the GPU of an op's arguments current: PyTorch's functions use the current GPU's random state."""
    devices = (x.device for x in args if isinstance(x, torch.Tensor) and x.is_cuda)
    device = next(devices, kwargs.get("device"))
    return torch.cuda.device(device) if device is not None and device.type == "cuda" else nullcontext()


def run_checkpoint(run: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Make a captured call of ``checkpoint`` as eager code does: its body runs again in the backward pass.

    ``run`` runs the body, a graph, on its inputs; body and inputs are the arguments of the call.
    """
    body, *inputs = args
    captured: Any = torch.ops.higher_order.tag_activation_checkpoint
    _settings, rest = captured.divide_kwargs(kwargs)
    context = body.meta.get("_checkpoint_context_fn", noop_context_fn)
    return checkpoint(
        run, body, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=context, **rest
    )


def saves_are_hooked() -> bool:
    """Whether code outside chooses how autograd saves tensors, as a checkpoint does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def is_sole_gradient(x: torch.Tensor) -> bool:
    """Whether autograd alone holds a gradient that it passes to an op; call it from a dispatch mode."""
    # It is also held by the dispatcher, its arguments and this function; its storage, by the tensor and here.
    counted: Any = x
    return counted._use_count() <= 4 and torch._C._storage_Use_Count(x.untyped_storage()._cdata) <= 2


def is_transformed() -> bool:
    """Whether a transformation of ``torch.func``, such as ``grad`` or ``vmap``, runs the calling code."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def active_ddp() -> DistributedDataParallel | None:
    """The DDP module that is running forward, if one is."""
    return DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-any-return,no-untyped-call]


def store_of(group: dist.ProcessGroup | None) -> Any:
    """The key-value store through which the ranks of a group found each other; None = the default group."""
    return dist.distributed_c10d._get_process_group_store(group or dist.distributed_c10d._get_default_group())


def parameters_of(module: nn.Module) -> Collection[nn.Parameter]:
    """As ``module.parameters()``, in another order and in less time: it runs at each call."""
    parts, seen = [module], {module}
    for part in parts:  # which grows meanwhile
        if part._modules:
            inside = [x for x in part._modules.values() if x is not None and x not in seen]
            seen.update(inside)
            parts += inside
    tables = [part._parameters for part in parts if part._parameters]
    return {id(x): x for table in tables for x in table.values() if x is not None}.values()


def step_without_wrappers(optimizer: torch.optim.Optimizer) -> Callable[[Any], object]:
    """An optimizer's ``step``, less hooks, and less the switch of gradients where they are off already."""
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):  # PyTorch wraps the step of each class once
        step = step.__wrapped__
    switches = getattr(step, "__code__", None) is _SWITCHES_GRADIENTS
    if switches and not (torch.is_grad_enabled() or optimizer.defaults["differentiable"]):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


def registries(module: nn.Module) -> dict[str, object]:
    """The tables in which a module keeps parameters, buffers and submodules: attribute name → table."""
    names = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    return {name: getattr(module, name) for name in names}


class WeakStorage:
    """A weak reference to a storage of ``size`` bytes; ``key`` is its :func:`storage_id`."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.key, self.size = storage_id(storage), storage.nbytes()
        self._reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def is_gone(self) -> bool:
        """Whether the storage was freed."""
        return bool(self._reference.expired())  # type: ignore[no-untyped-call]


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that identifies a storage, real or fake, as long as it lives."""
    return int(storage._cdata)


def sleep_on_gpu(cycles: int) -> None:
    """Keep the current CUDA stream busy for a number of cycles, so that later kernels queue up."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

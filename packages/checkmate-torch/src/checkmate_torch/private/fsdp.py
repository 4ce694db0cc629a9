"""FSDP2, ``torch.distributed.fsdp.fully_shard``: how a model is sharded, and twins of it on fake tensors.

A *unit* is what one call of ``fully_shard`` has made: some modules whose parameters are gathered and freed
together. The first unit is the root, which holds the parameters of no other unit. FSDP is slow to import, so
the functions that need it import it.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from checkmate_torch.private.fakes import FakeTensor, FakeTensorMode

__all__ = [
    "Communication",
    "ShardedUnit",
    "fake_ranks",
    "gathered_gradients",
    "is_sharded",
    "local_of",
    "on_resize",
    "shard_alike",
    "units_of",
    "unknown_sharding",
    "unsharded_twin",
    "waits_for_reduction",
    "without_reduction",
]

_SETTINGS = (
    "reduce_grads",
    "all_reduce_grads",
    "reshard_after_backward",
    "unshard_in_backward",
    "unshard_async_op",
    "reduce_scatter_unused_params",
    "reduce_scatter_max_input_buffers",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
)
"""Attributes of FSDP's parameter groups that users set by methods of the module; some releases lack some."""
_PREFETCHED = "_states_to_forward_prefetch", "_states_to_backward_prefetch"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardedUnit:
    """A unit of a sharded model.

    Attributes:
        names: the paths of its modules in the model; "" = the model itself.
        modules: its modules.
        state: FSDP's own state of it.
    """

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    state: Any

    @property
    def groups(self) -> list[Any]:
        """FSDP's parameter groups: usually one."""
        state = self.state
        if hasattr(state, "_fsdp_param_groups"):
            return list(state._fsdp_param_groups)
        return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # before PyTorch 2.12

    @property
    def parameters(self) -> list[Any]:
        """FSDP's records of its parameters."""
        return [p for group in self.groups for p in group.fsdp_params]


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` was applied to a module or to a part of it."""
    if not dist.is_available():
        return False
    return any(hasattr(module, "_get_fsdp_state") for module in model.modules())


def local_of(value: Tensor) -> Tensor:
    """The part of a distributed tensor that this rank holds; other tensors themselves."""
    return getattr(value, "_local_tensor", value)


def units_of(model: nn.Module) -> list[ShardedUnit]:
    """The units of a model, in the order of its modules: a root comes before its parts."""
    found: dict[int, Any] = {}
    names: dict[int, list[tuple[str, nn.Module]]] = {}
    for name, module in model.named_modules():
        if hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            found[id(state)] = state
            names.setdefault(id(state), []).append((name, module))
    return [
        ShardedUnit(names=tuple(n for n, _ in pairs), modules=tuple(m for _, m in pairs), state=found[key])
        for key, pairs in names.items()
    ]


def unknown_sharding(model: nn.Module) -> str:
    """What a sharded model uses that rehearsals don't know; empty if they know all of it."""
    for unit in units_of(model):
        for group in unit.groups:
            if type(group.offload_policy).__name__ != "OffloadPolicy":
                return "FSDP's offload (offload_policy)"
            if any(p.is_dtensor for p in group.fsdp_params):
                return "tensor parallel parameters (DTensor)"
    return ""


def unsharded_twin(model: nn.Module, mode: FakeTensorMode, *, computes: bool = False) -> nn.Module:
    """A copy of a sharded model as it was before it was sharded, with fake tensors in the place of all.

    Args:
        model: sharded.
        mode: of the fake tensors.
        computes: True = parameters have the dtype in which FSDP gathers them; False = the original one.
    """
    memo: dict[int, object] = {}
    for unit in units_of(model):
        for group in unit.groups:
            for p in group.fsdp_params:
                dtype = (group.mp_policy.param_dtype if computes else None) or p.sharded_param.dtype
                whole = _parameter(p.sharded_param, dtype, mode)
                memo |= {id(x): whole for x in _forms(p)}
    shells: list[tuple[nn.Module, nn.Module]] = []
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            own: Any = type(module).__mro__[getattr(type(module), "_orig_cls_mro_index", 2)]
            memo[id(module)] = shell = own.__new__(own)
            shells.append((module, shell))
        for value in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if id(value) not in memo:
                memo[id(value)] = value if isinstance(value, FakeTensor) else mode.from_tensor(value)
    for module, shell in shells:
        vars(shell).update(copy.deepcopy(_without_fsdp(module), memo))
    return copy.deepcopy(model, memo)


def _parameter(sharded: Tensor, dtype: torch.dtype, mode: FakeTensorMode) -> nn.Parameter:
    with mode:
        whole = torch.empty(sharded.shape, dtype=dtype, device=local_of(sharded).device)
    return nn.Parameter(whole, requires_grad=sharded.requires_grad)


def _without_fsdp(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module, without FSDP's hooks and state, and without calls that we replaced."""
    kept = {}
    state = module.__getstate__()  # type: ignore[no-untyped-call]
    for name, value in state.items():
        if not isinstance(name, str) or name.startswith(("_checkmate", "__composable")) or name == "forward":
            continue
        if "hooks" in name and isinstance(value, dict):
            value = type(value)((k, hook) for k, hook in value.items() if not _is_of_fsdp(hook))
            if "state_dict" in name:
                value = OrderedDict()
        kept[name] = value
    return {k: v for k, v in kept.items() if not k.startswith("_fsdp") and k != "_is_fsdp_managed_module"}


def _is_of_fsdp(hook: object) -> bool:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return "_fully_shard" in getattr(hook, "__module__", "")


def shard_alike(model: nn.Module, twin: nn.Module, comm: Communication) -> None:
    """Shard a twin as a model is sharded, on the same meshes; it sends nothing.

    Args:
        model: sharded.
        twin: as :func:`unsharded_twin` makes it; changed in place, under its fake mode.
        comm: allocates its buffers.
    """
    from torch.distributed.fsdp import fully_shard

    units = units_of(model)
    for unit in reversed(units):  # parts before what holds them
        mine = [twin.get_submodule(name) for name in unit.names]
        for group in unit.groups[:1]:
            fully_shard(
                mine if len(mine) > 1 else mine[0],
                mesh=group.mesh_info.mesh,
                reshard_after_forward=_reshards(unit, group),
                mp_policy=group.mp_policy,
                offload_policy=group.offload_policy,
                shard_placement_fn=_placements(unit, twin),
                ignored_params=_ignored(units, unit, mine),
            )
        if not unit.groups:
            fully_shard(mine[0], mesh=_some_mesh(units))
    twins = {unit.names: unit for unit in units_of(twin)}
    states = {id(unit.state): twins[unit.names].state for unit in units}
    for unit in units:
        mirror = twins[unit.names]
        for name in _PREFETCHED:
            setattr(mirror.state, name, [states[id(s)] for s in getattr(unit.state, name)])
        for group, other in zip(unit.groups, mirror.groups, strict=True):
            _set_alike(group, other)
    _silence(twin, comm)


def _set_alike(group: Any, twin: Any) -> None:
    """Set what users may have set after ``fully_shard``, and what can't be made under a fake mode."""
    for name in _SETTINGS:
        if hasattr(group, name):
            setattr(twin, name, getattr(group, name))
    if group.post_forward_mesh_info not in (None, group.mesh_info):  # reshard_after_forward is a number
        for holder in (twin, *twin.fsdp_params):
            holder.post_forward_mesh_info = group.post_forward_mesh_info


def _silence(twin: nn.Module, comm: Communication) -> None:
    """Let a sharded module on fake tensors allocate its buffers by ``comm``, and send nothing."""
    for unit in units_of(twin):
        for group in unit.groups:
            group._all_gather_comm, group._reduce_scatter_comm = comm.gather, comm.scatter
            for p in group.fsdp_params:
                p.to_sharded_post_forward = functools.partial(_keep_smaller, p, comm)


def _keep_smaller(parameter: Any, comm: Communication) -> None:
    """Show the part of a parameter that is kept after the forward pass on a smaller mesh."""
    type(parameter).to_sharded_post_forward(parameter)
    comm.kept(parameter._sharded_post_forward_param_data)


def _reshards(unit: ShardedUnit, group: Any) -> bool | None:
    return None if unit.state._auto_reshard_after_forward else group.post_forward_mesh_info is not None


def _placements(unit: ShardedUnit, twin: nn.Module) -> Callable[[nn.Parameter], Any] | None:
    """Which dimension each parameter is split along, if it is not the first one."""
    by_name = {}
    for parameter in unit.parameters:
        info = parameter._module_info
        by_name[id(info.module), info.param_name] = parameter.fsdp_placement
    if all(placement.dim == 0 for placement in by_name.values()):
        return None
    known = {}
    for name, module in zip(unit.names, unit.modules, strict=True):
        for path, part in module.named_modules():
            mirror = twin.get_submodule(".".join(filter(None, (name, path))))
            for key, p in mirror.named_parameters(recurse=False):
                known[id(p)] = by_name.get((id(part), key))
    return lambda p: known.get(id(p))


def _ignored(units: list[ShardedUnit], unit: ShardedUnit, mine: list[nn.Module]) -> set[nn.Parameter] | None:
    """The twins of parameters that no unit manages."""
    managed = {id(x) for each in units for p in each.parameters for x in _forms(p)}
    names = {n for module in unit.modules for n, p in module.named_parameters() if id(p) not in managed}
    return {p for module in mine for n, p in module.named_parameters() if n in names} or None


def _forms(parameter: Any) -> list[Tensor]:
    """A parameter as it is in the model while it is sharded, and while it is gathered."""
    forms = parameter.sharded_param, getattr(parameter, "_unsharded_param", None)
    return [x for x in forms if x is not None]


def _some_mesh(units: list[ShardedUnit]) -> Any:
    return next(group.mesh_info.mesh for unit in units for group in unit.groups)


class Communication:
    """FSDP's buffers, shown to the caller; nothing is sent.

    Args:
        gathered: called with the buffer of each all-gather.
        scattered: called with the buffers of each reduce-scatter, and whether it is the one of the results.
        sent: called with the input or output of each collective, the larger one, while it runs.
        kept: called with what remains of a gathered parameter where ``reshard_after_forward`` is a number.
    """

    def __init__(
        self,
        gathered: Callable[[Tensor], None],
        scattered: Callable[[Tensor, bool], None],
        sent: Callable[[Tensor], None],
        kept: Callable[[Tensor], None],
    ) -> None:
        self.kept = kept
        from torch.distributed.fsdp._fully_shard import _fsdp_api as api

        class Gather(api.AllGather):
            def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
                buffer = torch.empty(*size, dtype=dtype, device=device)
                gathered(buffer)
                return buffer

            def __call__(self, output_tensor: Tensor, *_: object, **__: object) -> None:
                """Gather nothing."""
                sent(output_tensor)

        class Scatter(api.ReduceScatter):
            is_result = False

            def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
                buffer = torch.empty(*size, dtype=dtype, device=device)
                scattered(buffer, self.is_result)
                self.is_result = not self.is_result
                return buffer

            def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *_: object, **__: object) -> None:
                """Scatter nothing."""
                sent(input_tensor)

        self.gather, self.scatter = Gather(), Scatter()
        self._sent = sent

    @contextmanager
    def without_all_reduce(self) -> Iterator[None]:
        """Within the block, the gradients of replicas of shards (HSDP) are not added up: nothing is sent."""

        def all_reduce(x: Tensor, *_: object, **__: object) -> None:
            self._sent(x)

        with patch.object(dist, "all_reduce", all_reduce):
            yield


@contextmanager
def on_resize(tell: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Within the block, call ``tell`` with each storage that is resized: so FSDP frees what it gathered."""
    own = torch._C.StorageBase.resize_  # type: ignore[attr-defined]

    def resize_(storage: torch.UntypedStorage, size: int) -> object:
        result = own(storage, size)
        tell(storage)
        return result

    with patch.object(torch.UntypedStorage, "resize_", resize_, create=True):
        yield


def gathered_gradients(model: nn.Module) -> list[tuple[Any, str]]:
    """Where a model holds gradients of gathered parameters, which wait for their reduction: attributes."""
    places = []
    for parameter in (p for unit in units_of(model) for p in unit.parameters):
        places.append((parameter, "unsharded_accumulated_grad"))
        if (gathered := getattr(parameter, "_unsharded_param", None)) is not None:
            places.append((gathered, "grad"))
    return [(holder, name) for holder, name in places if getattr(holder, name) is not None]


@contextmanager
def without_reduction(model: nn.Module) -> Iterator[None]:
    """Within the block, backward passes leave gradients of gathered parameters."""
    groups = [(group, group.reduce_grads) for unit in units_of(model) for group in unit.groups]
    for group, _ in groups:
        group.reduce_grads = False
    try:
        yield
    finally:
        for group, reduces in groups:
            group.reduce_grads = reduces


def waits_for_reduction(unit: ShardedUnit) -> bool:
    """Whether the gradients of the next backward pass are not reduced, as gradients are accumulated."""
    return not all(group.reduce_grads for group in unit.groups)


@contextmanager
def fake_ranks(world_size: int) -> Iterator[None]:
    """Within the block, this process is rank 0 of a default process group that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # the group replaces it by one that names the rank
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook

"""A step under a policy, as eager PyTorch would run it: its ops, the bytes that live, what runs again.

    (model, policy) ↦ ops o₁ … oₙ, live bytes after each, the storages that live at each, which oₖ run again

The model's own code runs on fake tensors, with ``torch.utils.checkpoint`` where the policy has it. Nothing of
its semantics is modelled: what a recomputation keeps, when it stops early, which outputs a selective policy
caches is decided by PyTorch's own code. Each distinct op is priced once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from checkmate import DFGraph, Op, UnsupportedModelError
from checkmate import Tensor as GraphTensor
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.capture.target_kernels import RunsKernelsOfTarget
from checkmate_torch.costs.flops import product_flops
from checkmate_torch.costs.price import price
from checkmate_torch.memory.live_bytes import LiveBytes
from checkmate_torch.memory.plain_step import count_step
from checkmate_torch.ops.device import counts_as_cuda
from checkmate_torch.ops.storages import rounded, tensors_in
from checkmate_torch.planning.options import Options
from checkmate_torch.policies.policy import Call, EagerPolicy, Place, applied
from checkmate_torch.private import OpOverload, in_backward, is_mutable, storage_id, tree_leaves, tree_map

__all__ = ["EagerStep", "Ran", "run_eagerly"]

_HELD = "held before the step"
_IS_VIEW = "is view"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One op that ran.

    Attributes:
        key: its function, the layouts of its operands, and its other arguments.
        module: path of the innermost module that runs it; "" = autograd, or none.
        backward: whether autograd's backward pass runs it.
        again: whether it runs again for a recomputation.
        run: number of its run in this call of the checkpointed module, from 0; None = outside of one.
        live: bytes that live after it.
        around: path of the outermost module that runs it.
    """

    key: Hashable
    module: str
    backward: bool
    again: bool
    run: int | None
    live: int
    around: str = ""

    @property
    def op(self) -> str:
        """The op, with its overload."""
        return str(self.key[0])  # type: ignore[index]

    @property
    def name(self) -> str:
        """The op, where it runs, and why."""
        op = self.op.removesuffix(".default").removeprefix("aten.")
        place = re.sub(r"\b\d+\b", "*", self.module)
        if self.again:
            return f"{op}, run again ({place})"
        return f"{op} in backward" if self.backward else f"{op} ({place})" if place else op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EagerStep:
    """A step that ran on fake tensors.

    Attributes:
        ran: its ops in order.
        changes: each time the bytes of a storage change: number of ops before, storage, bytes since then;
            first those that are held before, with the number -1.
        samples: key of an op → its node, with fake tensors.
        states: bytes of the random states that the checkpoints hold on the device.
        calls: of modules that have parts, in order; none if they were not asked for.
        overwritten: numbers of the ops whose outputs are written to in place.
    """

    ran: Sequence[Ran]
    changes: Sequence[tuple[int, int, int]]
    samples: Mapping[Hashable, Node]
    states: int
    calls: Sequence[Call] = ()
    overwritten: Collection[int] = ()

    def peak(self, workspaces: Mapping[Hashable, int]) -> tuple[int, int]:
        """The most bytes at once, and the index of the op that runs then."""
        return max((self.states + op.live + workspaces.get(op.key, 0), -k) for k, op in enumerate(self.ran))

    def held_after(self, op: int) -> dict[str, int]:
        """What fills the memory after an op, and bytes; the largest first."""
        live: dict[int, tuple[str, int]] = {}
        for before, storage, size in self.changes:
            if before > op:
                break
            live[storage] = (_HELD if before < 0 else f"made by {self.ran[before].name}", size)
        sums: dict[str, int] = {}
        for what, size in live.values():
            sums[what] = sums.get(what, 0) + size
        return dict(sorted(((w, s) for w, s in sums.items() if s), key=lambda item: -item[1]))

    def priced(self, options: Options) -> DFGraph:
        """A graph of the distinct ops, in the order of ``samples``, with costs and workspaces.

        Views cost nothing, as in a traced graph.
        """
        tensors: list[GraphTensor] = []

        def numbers(values: Sequence[Tensor]) -> tuple[int, ...]:
            first = len(tensors)
            sizes = (rounded(x.numel() * x.element_size(), x.device) for x in values)
            tensors.extend(GraphTensor(name="", size=size) for size in sizes)
            return tuple(range(first, len(tensors)))

        ops, inputs = [], list[int]()
        for node in self.samples.values():
            reads = numbers([x for n in node.all_input_nodes for x in tensors_in(n.meta["val"])])
            inputs += reads
            made = numbers(tensors_in(node.meta["val"]))
            ops.append(Op(name=node.name, inputs=reads, outputs=made, cost=0.0))
        graph = DFGraph(ops=tuple(ops), tensors=tuple(tensors), inputs=tuple(inputs), outputs=())
        return price(
            graph,
            [None if _IS_VIEW in node.meta else node for node in self.samples.values()],
            options.cost_model,
            workspaces=options.workspaces,
            on_disk=options.cache,
            on_progress=options.listener(),
        )

    @property
    def flops_again(self) -> int:
        """FLOPs of products, convolutions and attention that run again."""
        return sum(product_flops(self.samples[op.key]) or 0 for op in self.ran if op.again)


def run_eagerly(
    model: nn.Module,
    example_inputs: object,
    policy: EagerPolicy,
    loss: Loss | None,
    *,
    notes_calls: bool = False,
) -> EagerStep:
    """Run a step under a policy on fake tensors.

    Args:
        model: as :func:`checkmate_torch.trace` takes it.
        example_inputs: as there.
        policy: what runs again.
        loss: as there.
        notes_calls: whether the calls of modules are noted.

    Raises:
        PolicyError: if the policy does not suit the model.
        UnsupportedModelError: if the model's code can't run on fake tensors, or there is no scalar loss.
    """
    place = Place(mode=RunsKernelsOfTarget)

    def counting(held: Mapping[int, int]) -> _Recorder:
        recorder = _Recorder(place, held)
        place.clock = partial(len, recorder.ran) if notes_calls else None
        return recorder

    found = count_step(
        model,
        example_inputs,
        loss,
        counting=counting,
        applied=lambda twin: applied(policy, twin, place),
    )
    if found is None:
        raise UnsupportedModelError(
            f"the model's own code can't run on fake tensors under the policy {policy}: logging at level "
            "DEBUG says why"
        )
    on_cpu = not any(map(counts_as_cuda, {x.device for x in tensors_in([*model.parameters()])}))
    state = torch.get_rng_state().nbytes if on_cpu else 0  # a tensor of the CPU, whatever the device
    return EagerStep(
        ran=found.ran,
        changes=found.changes,
        samples=found.samples,
        states=state * place.calls,
        calls=place.noted,
        overwritten=found.overwritten,
    )


class _Recorder(LiveBytes):  # type: ignore[no-untyped-call]
    """Counts live bytes, and notes each op, and each change of what lives."""

    def __init__(self, place: Place, held: Mapping[int, int]) -> None:
        super().__init__(held, reads_ones=True)
        self.place, self.ran = place, list[Ran]()
        self.changes = [(-1, key, size) for key, size in held.items()]
        self.samples: dict[Hashable, Node] = {}
        self.overwritten: set[int] = set()
        self._maker: dict[int, int] = {}
        self._graph = Graph()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        before = len(self.moments)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.moments) == before:  # no op
            return result
        live, call = self.moments[-1]
        settings = (repr(x) for x in tree_leaves((args, kwargs)) if not isinstance(x, Tensor))
        key = (func, call, *settings)
        again = self.place.again > 0
        backward = in_backward() and not again
        modules = self.place.modules or [""]
        run = None if self.place.runs is None else self.place.runs[str(func)]
        if self.place.runs is not None:
            self.place.runs[str(func)] += 1
        self.ran.append(
            Ran(
                key=key,
                module=modules[-1],
                backward=backward,
                again=again,
                run=run,
                live=live,
                around=modules[0],
            )
        )
        if key not in self.samples:
            self.samples[key] = self._sample(func, args, kwargs or {}, result)
        if is_mutable(func):
            self.overwritten |= {self._maker[x] for x in _storages(result) if x in self._maker}
        return result

    def _sample(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], made: object) -> Node:
        """A node for the call, with new fake tensors, which hold no storage of the step's."""

        def shown(value: object) -> object:
            if not isinstance(value, Tensor):
                return value
            node = self._graph.placeholder("x")
            node.meta["val"] = _like(value)
            return node

        node_args, node_kwargs = tree_map(shown, (tuple(args), dict(kwargs)))
        node = self._graph.call_function(func, node_args, node_kwargs)
        node.meta["val"] = tree_map(_like, made)
        if _storages(made) <= _storages((args, kwargs)) and not is_mutable(func):
            node.meta[_IS_VIEW] = True
        return node

    def changed(self, key: int, size: int) -> None:
        """Note what lives from now on."""
        if size:
            self._maker[key] = len(self.ran)
        else:
            self._maker.pop(key, None)
        self.changes.append((len(self.ran), key, size))


def _storages(values: object) -> set[int]:
    return {storage_id(x.untyped_storage()) for x in tensors_in(values)}


def _like(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)

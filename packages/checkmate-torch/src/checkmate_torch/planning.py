"""The Dynamo backend: plan at trace time, run generated code whose order is the schedule.

A model reaches it through :func:`checkmate_torch.compile` or ``torch.compile(model, backend="checkmate",
options={"budget": "8GiB"})``. AOTAutograd traces the joint graph and asks for a partition; the plan is made
there. Graphs without a backward pass run as they are.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from checkmate import CheckmateError, Solution
from checkmate.report import Account, Kind
from checkmate_torch.account import account_of, module_of, named, owned_by
from checkmate_torch.distributed import bucket_bytes, refuse_split_graphs
from checkmate_torch.emit import emit
from checkmate_torch.joint import Traced, UnsupportedModelError, trace_joint
from checkmate_torch.lowering import Lowering, lowered
from checkmate_torch.options import Options
from checkmate_torch.storages import allocated_bytes, storage_key

__all__ = [
    "Plan",
    "Planner",
    "TracingDone",
    "checkmate_backend",
    "held_before",
    "held_besides",
    "kinds_of",
    "log_plan",
    "refuse_nested",
]

_log = logging.getLogger(__name__)
_OF_INDUCTOR = ("Inductor orders and frees in its own way: the prediction is no bound; measure the peak",)


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Plan:
    """What was decided for one traced graph.

    Attributes:
        traced: the joint graph and its DFGraph.
        solution: the judged schedule; ``solution.peak`` is the predicted peak of the whole step in bytes.
        account: what each byte is held for.
        lowering: how its graphs run; only ``"eager"`` ones follow the schedule to the letter.
        plain_peak: predicted peak of plain PyTorch, in bytes; None where that is the graph's base order.
    """

    traced: Traced
    solution: Solution
    account: Account = field(default_factory=Account)
    lowering: Lowering = "eager"
    plain_peak: int | None = None

    @property
    def modules(self) -> list[str]:
        """Where in the model each op of the graph comes from, as far as PyTorch knows; else empty."""
        return [module_of(node) for node in self.traced.nodes]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else must be known of the predicted peak."""
        return _OF_INDUCTOR if self.lowering == "inductor" else ()


class TracingDone(CheckmateError):  # noqa: N818 - it ends a trace that worked
    """Leaves Dynamo once a step is traced, before anything is planned or run."""

    def __init__(self, traced: Traced, account: Account) -> None:
        super().__init__("traced")
        self.traced, self.account = traced, account


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Planner:
    """A Dynamo backend with its settings and the plans that it has made.

    Attributes:
        options: how to plan.
        module: whose parameters, buffers and gradients are resident too where the graph does not take them.
        only_trace: raise :class:`TracingDone` with the first graph instead of planning it.
        plans: one for each traced graph with a backward pass, in the order of tracing.
    """

    options: Options
    module: nn.Module | None = field(default=None, repr=False)
    only_trace: bool = False
    plans: list[Plan] = field(default_factory=list, repr=False)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Compile a graph that Dynamo captured."""
        partition = partial(self._partition, example_inputs=example_inputs)
        forward, backward = lowered(self.options.lowering)
        compiler = aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=partition)
        with torch._functorch.config.patch(donated_buffer=False):
            return compiler(gm, example_inputs)

    def _partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[Sequence[object]],
        *,
        num_fwd_outputs: int,
        example_inputs: Sequence[object],
        **_: object,
    ) -> tuple[GraphModule, GraphModule]:
        """Split a joint graph so that what is saved and what is recomputed follow the best schedule."""
        refuse_nested(joint_inputs)
        options = self.options
        owned = owned_by(self.module)
        given = {storage_key(x): x for x in example_inputs if isinstance(x, torch.Tensor)}
        fixed = held_besides(options, owned, given) | {Kind.BUCKETS: bucket_bytes()}
        traced = trace_joint(
            joint,
            n_primals=len(joint_inputs[0]),
            n_forward_outputs=num_fwd_outputs,
            reserve=sum(fixed.values()),
            loss_bytes=options.loss_bytes,
            name=type(self.module).__name__ if self.module is not None else "",
        )
        graph = named(traced, example_inputs, self.module)
        traced = replace(traced, graph=options.priced(graph, traced.nodes))
        account = account_of(traced, kinds_of(traced, example_inputs, owned), fixed)
        if self.only_trace:
            raise TracingDone(traced, account)
        solution = options.on(*held_before(given.values(), fixed)).decided(traced.graph, account)
        if solution.schedule is None:
            raise RuntimeError("solve returned no schedule and raised nothing")
        modules = emit(traced, solution.schedule)
        self.plans.append(Plan(traced=traced, solution=solution, account=account, lowering=options.lowering))
        log_plan(self.plans, owned, given)
        return modules


def checkmate_backend(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., object]:
    """The entry point behind ``torch.compile(model, backend="checkmate", options={"budget": "8GiB"})``.

    Each graph that Dynamo captures is planned alone: with graph breaks the budget bounds each piece, not the
    step, and a warning says where it broke. The options are the arguments of :func:`checkmate_torch.compile`.
    """
    if mode is not None:
        raise ValueError(f"backend 'checkmate' has no modes, got {mode!r}")
    if not options or "budget" not in options:
        raise ValueError("backend 'checkmate' needs a budget: options={'budget': '8GiB'}")
    known = inspect.signature(Options.parse).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"backend 'checkmate' has no option {unknown[0]!r}; it has {sorted(known)}")
    broken = getattr(gm, "compile_subgraph_reason", None)
    if broken is not None and broken.graph_break:
        count = sum(torch._dynamo.utils.counters["graph_break"].values())
        _log.warning(
            "graph break, %d so far: the budget bounds each piece alone, not the step: %s",
            count,
            broken.reason,
        )
    refuse_split_graphs()
    return Planner(Options.parse(**{"process_group": "all", **options}))(gm, example_inputs)


def refuse_nested(joint_inputs: Sequence[Sequence[object]]) -> None:
    """Raise if AOTAutograd asks about a region of its own, of which it tells no inputs."""
    if not joint_inputs:
        raise UnsupportedModelError(
            "a region under torch.compiler.nested_compile_region can't be planned: call it without"
        )


def held_besides(
    options: Options, owned: Mapping[int, tuple[Kind, int]], given: Mapping[int, torch.Tensor]
) -> dict[Kind, int]:
    """Bytes that a step holds and its graph does not show, by kind; storages are known by their keys."""
    fixed = {Kind.RESERVE: options.reserve, Kind.OPTIMIZER: options.optimizer_bytes}
    for key, (kind, size) in owned.items():
        if key not in given:
            fixed[kind] = fixed.get(kind, 0) + size
    return fixed


def log_plan(
    plans: Sequence[Plan],
    owned: Mapping[int, tuple[Kind, int]],
    given: Mapping[int, torch.Tensor],
    of: str = "",
) -> None:
    """Tell of the latest plan, for the shapes of the batch; a second one is worth a warning."""
    batch = [x for key, x in given.items() if key not in owned and not isinstance(x, nn.Parameter)]
    label = ", ".join(str(tuple(x.shape)) for x in batch)
    level = logging.INFO if len(plans) == 1 else logging.WARNING
    text = repr(plans[-1].solution)  # handlers may keep the record: it must not hold the plan
    _log.log(level, "plan %d, %sfor %s: %s", len(plans), of, label, text)


def kinds_of(
    traced: Traced, example_inputs: Sequence[object], owned: Mapping[int, tuple[Kind, int]]
) -> dict[Node, Kind]:
    """What each primal is to the module: AOTAutograd tells which example input it stands for."""
    kinds: dict[Node, Kind] = {}
    for node in traced.primals:
        index = getattr(node.meta.get("desc"), "idx", None)
        value = example_inputs[index] if index is not None and index < len(example_inputs) else None
        if isinstance(value, torch.Tensor):
            known = Kind.PARAMETERS if isinstance(value, nn.Parameter) else Kind.BATCH
            kinds[node] = owned.get(storage_key(value), (known, 0))[0]
    return kinds


def held_before(given: Iterable[torch.Tensor], fixed: Mapping[Kind, int]) -> tuple[torch.device, int]:
    """The device of a step, and the bytes of it that are there already; what is to come is not counted."""
    tensors = list(given)
    device = next((x.device for x in tensors if x.dim()), torch.device("cpu"))
    besides = sum(size for kind, size in fixed.items() if kind not in (Kind.RESERVE, Kind.OPTIMIZER))
    return device, besides + sum(allocated_bytes(x) for x in tensors if not isinstance(x, FakeTensor))

"""The parts of a sharded model that can be planned, and for each a menu of schedules, the cheapest first.

    call of a part ↦ joint graph ↦ schedules that keep less and less ↦ what each needs in the step

A part is a unit of FSDP without units inside. Its parameters are gathered once for its forward pass and once
for its backward pass, whatever is recomputed in it, so no schedule of a part gathers anything again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.fx import Node

from checkmate import (
    DFGraph,
    Problem,
    Schedule,
    Solution,
    Timeline,
    UnsupportedModelError,
    keep_all_peak,
    simulate,
)
from checkmate.framework import decide
from checkmate_torch.capture.dynamo_capture import captured, stopped
from checkmate_torch.distributed.ranks import Ranks, decided_together
from checkmate_torch.memory.sharded_step import Layout, Part, RecordedCall
from checkmate_torch.ops.storages import storage_key, tensors_in
from checkmate_torch.planning.decide import least_memory
from checkmate_torch.planning.options import Options
from checkmate_torch.planning.planner import Tracer
from checkmate_torch.planning.steps.split_step import SplitStep
from checkmate_torch.planning.steps.stages import PricedStep
from checkmate_torch.private import is_sharded, tree_map_only, units_of, unknown_sharding

__all__ = [
    "Item",
    "PartGraph",
    "item_of",
    "menu_of",
    "own_forward",
    "parts_of",
    "refuse_sharding",
    "traced_part",
]

_LEVELS = (0.75, 0.5, 0.35, 0.2, 0.1, 0.05, 0.0)
"""Shares of what a part keeps without recomputation, for each of which a schedule is found."""
_PEAKS = (0.75, 0.5)
"""Shares of a part's own peak without recomputation, within which some of these schedules are found, too."""
_SHORTEST_S = 0.2
"""Seconds that a solver gets at least for one schedule."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartGraph:
    """The priced graph of a part's call.

    Attributes:
        graph: of forward and backward pass.
        boundary: the op between them.
        arguments: tensor of the graph → number among the tensors of the call's arguments.
        results: the same for the call's results.
        step: as it was traced.
    """

    graph: DFGraph
    boundary: int
    arguments: Mapping[int, int]
    results: Mapping[int, int]
    step: PricedStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Item:
    """A schedule of a part.

    Attributes:
        schedule: of its graph.
        part: what the step sees of it.
        weight: bytes that it keeps between its two passes, the arguments that it reads again included.
        cost: of forward and backward pass.
    """

    schedule: Schedule
    part: Part
    weight: int
    cost: float

    @property
    def needs(self) -> tuple[int, int, int]:
        """Bytes that it takes in its forward pass, between both passes, and in its backward pass."""
        return self.part.forward, self.weight, self.weight + self.part.backward


def parts_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of units without units inside, except the root; with their paths in the model."""
    modules = (pair for unit in units_of(model) for pair in zip(unit.names, unit.modules, strict=True))
    return [(name, module) for name, module in modules if name and _is_leaf(module)]


def refuse_sharding(model: nn.Module) -> None:
    """Raise UnsupportedModelError if a model is sharded in a way that can't be planned."""
    if units_of(model)[0].names[0] != "":
        raise UnsupportedModelError(
            "fully_shard was applied to parts of this model, but not to the model itself: apply it to the "
            "model last, so that one budget can bound the whole step"
        )
    if what := unknown_sharding(model):
        raise UnsupportedModelError(
            f"this model uses {what}, which no budget can bound yet: shard it over a mesh of one dimension, "
            "or compile each block before it is sharded"
        )


def _is_leaf(module: nn.Module) -> bool:
    return not any(is_sharded(part) for part in module.modules() if part is not module)


def own_forward(module: nn.Module, *args: object, **kwargs: object) -> object:
    """The ``forward`` of a module's class: FSDP's hooks, which run around it, are not captured."""
    return type(module).forward(module, *args, **kwargs)


def traced_part(options: Options, module: nn.Module, call: RecordedCall) -> PartGraph | None:
    """Trace and price a recorded call of a part.

    Args:
        options: how to plan.
        module: the part of a twin, with the parameters that it computes with; its fake mode is active.
        call: the call.

    Returns:
        None if nothing in it needs a gradient.

    Raises:
        UnsupportedModelError: if it can't be captured.
    """
    args, kwargs = tree_map_only(Layout, _leaf, call.arguments)
    kind = SplitStep(options=replace(options, loss_bytes=0), module=module)
    run = captured(own_forward, Tracer(step=kind), read_masks=options.read_masks)
    step: PricedStep | None = stopped(run, module, *args, **kwargs)
    traced = None if step is None else step.traced
    if step is None or traced is None or traced.boundary is None:
        return None
    numbers = {storage_key(x): k for k, x in enumerate(tensors_in((args, kwargs)))}
    arguments = {}
    for node in traced.primals:
        value = step.captured.inputs[node.meta["desc"].idx]
        if isinstance(value, Tensor) and storage_key(value) in numbers and node in traced.tensor_of:
            arguments[traced.tensor_of[node]] = numbers[storage_key(value)]
    made = [node for node in traced.forward_outputs if node not in traced.new_values]
    results = {
        traced.tensor_of[n]: k for k, n in enumerate(made) if isinstance(n, Node) and n in traced.tensor_of
    }
    return PartGraph(
        graph=step.graph, boundary=traced.boundary, arguments=arguments, results=results, step=step
    )


def _leaf(layout: Layout) -> Tensor:
    return layout.empty().requires_grad_(layout.requires_grad)


def menu_of(part: PartGraph, options: Options, seconds: float) -> list[Item]:
    """Schedules of a part, from no recomputation on: the cheapest first, none worse in all than another.

    Args:
        part: the part.
        options: how to plan; the same schedules are found on all ranks that plan together.
        seconds: for all of them.
    """
    graph = part.graph
    everything = item_of(part, Schedule.from_sequence(graph, range(graph.n_ops)))
    saved, most = everything.part.saved, keep_all_peak(graph) - graph.base_size
    outside = _between(part, simulate(graph, everything.schedule))[1] - saved
    kept = [outside + int(level * saved) for level in _LEVELS]
    pairs = [(most, size + most) for size in kept]  # bytes of the rest of the step, and of all
    rooms = [graph.base_size + int(share * most) for share in _PEAKS]
    pairs += [(room - size, room) for room in rooms for size in kept[1::2] if size < room]
    brief = replace(options, time_limit=max(_SHORTEST_S, seconds / (len(pairs) + 2)))
    found = [_least(_with_workspace(graph, part.boundary, most), brief), _least(graph, brief)]
    for rest, room in sorted(pairs, key=lambda pair: pair[1] - pair[0]):  # what fits less also fits more
        found.append(_solved(_with_workspace(graph, part.boundary, rest), room, found, brief))
    return _efficient([everything, *(item_of(part, each) for each in found if each is not None)])


def _with_workspace(graph: DFGraph, boundary: int, size: int) -> DFGraph:
    """The graph with the rest of the step between its two passes: what it keeps decides what fits."""
    ops = list(graph.ops)
    ops[boundary] = replace(ops[boundary], workspace=size)
    return replace(graph, ops=tuple(ops))


def _agreed(
    graph: DFGraph, budget: int, options: Options, solve: Callable[[int], Solution]
) -> Schedule | None:
    """The schedule that rank 0 finds, on all ranks that plan together."""
    problem = Problem(graph=graph, budget=budget, time_limit=options.time_limit, fixed_order=True)
    return decided_together(Ranks.of(options.process_group), problem, solve).schedule


def _solved(graph: DFGraph, room: int, known: Sequence[Schedule | None], options: Options) -> Schedule | None:
    """A schedule within a room, found from the cheapest of the known ones that fit."""
    replays = [simulate(graph, schedule) for schedule in known if schedule is not None]
    fitting = [replay for replay in replays if replay.peak <= room]
    start = min(fitting, key=lambda replay: replay.cost).schedule if fitting else None

    def solve(budget: int) -> Solution:
        return decide(graph, budget, options, fixed_order=True, start=start, throw=False)

    return _agreed(graph, room, options, solve)


def _least(graph: DFGraph, options: Options) -> Schedule | None:
    def solve(_: int) -> Solution:
        return least_memory(graph, options.time_limit)

    return _agreed(graph, keep_all_peak(graph), options, solve)


def _between(part: PartGraph, timeline: Timeline) -> tuple[int, int]:
    """The position of the boundary in a schedule, and the bytes held once the rest of the step has run."""
    codes: list[int] = timeline.schedule.codes.tolist()
    at = codes.index(part.boundary)
    held = sum(part.graph.tensors[t].size for t in timeline.resident_at(at + 1))
    return at, part.graph.fixed_size + held


def item_of(part: PartGraph, schedule: Schedule) -> Item:
    """Simulate a schedule, and read off what the step sees of it."""
    graph = part.graph
    timeline, codes = simulate(graph, schedule), schedule.codes.tolist()
    at, started = _between(part, timeline)
    sizes = [t.size for t in graph.tensors]
    saved = sum(sizes[t] for t in timeline.resident_at(at) - {*graph.inputs, *part.results})
    read = {t for code in codes[at + 1 :] if code >= 0 for t in graph.ops[code].inputs}
    memory = timeline.memory
    alone = _without_results(part, memory[at + 1 :], codes[at + 1 :])
    return Item(
        schedule=schedule,
        part=Part(
            forward=max(0, int(memory[:at].max(initial=0)) - graph.base_size),
            saved=saved,
            backward=max(0, int(memory[at + 1 :].max(initial=0)) - started),
            backward_alone=max(0, int(alone.max(initial=0)) - started),
            inputs=frozenset(k for t, k in part.arguments.items() if t in read),
            outputs=frozenset(k for t, k in part.results.items() if t in read),
        ),
        weight=saved + sum(sizes[t] for t in part.arguments if t in read),
        cost=timeline.cost,
    )


def _without_results(
    part: PartGraph, memory: npt.NDArray[np.int64], codes: Sequence[int]
) -> npt.NDArray[np.int64]:
    """The memory of a backward pass that frees each result of the part once it has read it for the last time.

    In the graph, results stay to the end, as where a caller holds them. ``codes`` are those of the pass.
    """
    last: dict[int, int] = {}
    for k, code in enumerate(codes):
        if code >= 0:
            last.update((t, k) for t in part.graph.ops[code].inputs if t in part.results)
    alone = memory.copy()
    for t, k in last.items():
        alone[k + 1 :] -= part.graph.tensors[t].size
    return alone


def _efficient(items: Sequence[Item]) -> list[Item]:
    """The items, the cheapest first, without those that need no less at any moment than a cheaper one."""
    efficient: list[Item] = []
    for item in sorted(items, key=lambda item: (item.cost, item.needs)):
        if not any(all(a <= b for a, b in zip(one.needs, item.needs, strict=True)) for one in efficient):
            efficient.append(item)
    return efficient

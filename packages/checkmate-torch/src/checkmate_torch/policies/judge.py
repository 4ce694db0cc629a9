"""The judge of policies: what one costs, its true peak, and how far it is from the best schedule.

    policy ↦ (peak p, extra cost c); beside it  c*(p), a proved bound of c*(p), min {b : c*(b) ≤ c}

A policy of eager PyTorch runs on fake tensors (:mod:`checkmate_torch.policies.eager`). A policy of graphs,
PyTorch's ``activation_memory_budget`` or a schedule of ours, is a schedule of the traced joint graph, which
the simulator replays. The best schedules are those of ``checkmate.sweep`` on that graph; the executor of this
package runs them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from checkmate import (
    FormatError,
    Frontier,
    InvalidScheduleError,
    Problem,
    Schedule,
    Solution,
    Timeline,
    UnsupportedModelError,
    floor,
    read_schedule,
    simulate,
    sweep,
)
from checkmate.framework import proved_overhead
from checkmate.report import Kind, blank_figure, save_figure
from checkmate.units import format_bytes
from checkmate_torch.api.trace import TracedModel, options_for, trace
from checkmate_torch.capture.arguments import Loss, check_loss, check_module
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.planning.options import Options, TracingModelSettings
from checkmate_torch.policies.eager import EagerStep, run_eagerly
from checkmate_torch.policies.policy import LibraryDefault, MemoryBudget, PolicyError, Recompute, parsed
from checkmate_torch.private import partition_within

__all__ = ["Judged", "Judgement", "Policy", "beside", "judge", "judge_step", "trace_or_reason"]

Policy = str | Recompute | LibraryDefault | MemoryBudget | Schedule | Solution | Path
"""What :func:`judge` takes: a policy, its text as in :func:`~checkmate_torch.policies.policy.parsed`, or a
schedule of the traced graph, or the path of a file that has one; as text, it ends in .json or .msgpack."""

_GRID = 6
_HALVINGS = 4
_SHOWN = 4
_BESIDES = (Kind.RESERVE, Kind.OPTIMIZER, Kind.LIBRARIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A step under one policy.

    Attributes:
        policy: in words.
        peak: bytes.
        overhead: cost of what runs again, as a share of the cost of the step without recomputation.
        flops_again: FLOPs of products, convolutions and attention that run again; None = of a graph.
        where: the op that runs at the peak.
        held: what fills the memory then → bytes, the largest first.
        best_overhead: least overhead known of a schedule within ``peak``; None = none is known.
        bound: no schedule of the traced graph within ``peak`` has a lower overhead; 0 = nothing is proved.
        best_peak: least peak known, in bytes, of a schedule with at most this overhead; None = none is known.
    """

    policy: str
    peak: int
    overhead: float
    flops_again: int | None = None
    where: str = ""
    held: Mapping[str, int] = field(default_factory=dict)
    best_overhead: float | None = None
    bound: float = 0.0
    best_peak: int | None = None

    def __str__(self) -> str:
        """The verdict as one sentence.

        >>> best = {"best_overhead": 0.06, "best_peak": 11 * 2**30}
        >>> str(Judged(policy="", peak=19 * 2**30, overhead=0.31, **best))
        '19.00 GiB at +31.0 %; at 19.00 GiB +6.0 % is possible; at +31.0 % 11.00 GiB'
        """
        peak, extra = format_bytes(self.peak), _percent(self.overhead)
        parts = [f"{peak} at {extra}"]
        if self.best_overhead is not None:
            proved = f" (no schedule costs less than {_percent(self.bound)})" if self.bound > 0 else ""
            parts.append(f"at {peak} {_percent(self.best_overhead)} is possible{proved}")
        if self.best_peak is not None:
            parts.append(f"at {extra} {format_bytes(self.best_peak)}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Judgement:
    """What :func:`judge` found.

    Attributes:
        rows: one for each policy, plain training first.
        frontier: the best schedules; None = the model can't be traced as one graph.
        remark: the reason why there is no frontier.
    """

    rows: tuple[Judged, ...]
    frontier: Frontier | None = None
    remark: str = ""

    def __getitem__(self, policy: int | str) -> Judged:
        """A row by its position, or by its policy in words.

        Raises:
            KeyError, IndexError: if there is none.
        """
        if isinstance(policy, int):
            return self.rows[policy]
        found = [row for row in self.rows if row.policy == policy]
        if not found:
            raise KeyError(policy)
        return found[0]

    def __str__(self) -> str:
        """A sentence for each policy, and what fills its peak."""
        lines = []
        for row in self.rows:
            held = ", ".join(f"{what} {format_bytes(size)}" for what, size in [*row.held.items()][:_SHOWN])
            lines += [f"{row.policy}: {row}", f"    peak at {row.where}: {held}"]
        return "\n".join([*lines, *([f"no best schedule beside: {self.remark}"] if self.remark else [])])

    def to_dict(self) -> dict[str, Any]:
        """The rows as plain values: bytes, shares, FLOPs; and the points of the best schedules."""
        points = [] if self.frontier is None else self.frontier.points
        return {
            "policies": [asdict(row) | {"verdict": str(row)} for row in self.rows],
            "best": [{"peak": p.peak, "overhead": p.overhead, "bound": proved_overhead(p)} for p in points],
            "remark": self.remark,
        }

    def save_picture(self, path: str | os.PathLike[str]) -> None:
        """Draw peak and overhead of the policies, and the line of the best schedules with its proved bound.

        Args:
            path: of the picture; PNG, or what its suffix says: ``.svg``, ``.pdf``.

        Raises:
            MissingDistributionError: if matplotlib is not installed.
        """
        figure = blank_figure(8, 4.8)
        axes = figure.add_subplot()
        if self.frontier is not None:
            points = self.frontier.points
            peaks = [(p.peak or 0) / 2**20 for p in points]
            for name, shares, style in (
                ("best schedule", [100 * p.overhead for p in points], "C0-"),
                ("proved bound", [100 * proved_overhead(p) for p in points], "C0:"),
            ):
                axes.step(peaks, shares, style, where="post", label=name)
        for k, row in enumerate(self.rows):
            axes.plot(
                row.peak / 2**20, 100 * row.overhead, "osD^vP*X"[k % 8], color=f"C{k + 1}", label=row.policy
            )
        axes.set(xlabel="peak [MiB]", ylabel="extra cost [% of the plain step]")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(loc="best", fontsize=8, framealpha=0.9)
        save_figure(figure, path)


def judge(
    model: nn.Module,
    example_inputs: object,
    policy: Policy | Sequence[Policy] = (),
    *,
    loss: Loss | None = None,
    device: str | torch.device | None = None,
    time_limit: float = 2.0,
    **settings: Unpack[TracingModelSettings],
) -> Judgement:
    """Find out what recomputation policies cost, and how far they are from the best; nothing is run.

    Args:
        model: as in :func:`checkmate_torch.trace`.
        example_inputs: as there.
        policy: one or several policies; plain training is judged too, first. A schedule, or a file that has
            one, is of the graph of :func:`checkmate_torch.trace` with the same arguments.
        loss: as there.
        device: as there.
        time_limit: seconds for each solve of the best schedules: six, and up to five for each policy. 0 =
            look for no best schedules.
        **settings: :class:`~checkmate_torch.planning.options.TracingModelSettings`.

    Raises:
        PolicyError: if a policy can't be read, or the model can't run under it.
        UnsupportedModelError: if the model's code can't run on fake tensors, or there is no scalar loss.
        CostError: if the cost model can't price the step, or there is no such device.

    >>> layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)]
    >>> x = torch.zeros(256, 64)
    >>> quick = {"cost_model": "flops", "time_limit": 0.2}
    >>> found = judge(nn.Sequential(*layers), x, "?", loss=lambda y: y.sum(), **quick)
    >>> [row.policy for row in found.rows], found[1].peak < found[0].peak
    (['plain', 'checkpoint ?'], True)
    """
    check_module(model)
    check_loss(loss)
    given = [policy] if isinstance(policy, str) or not isinstance(policy, Sequence) else policy
    policies = [_parsed(each) if isinstance(each, str) else each for each in given]
    traced, remark = trace_or_reason(model, example_inputs, loss, device, settings)
    options = options_for(Target.parse(device), **settings) if traced is None else traced.options
    rows, known = [], list[Solution]()
    with for_target(Target.parse(device)):
        for each in dict.fromkeys([Recompute(), *policies]):
            if isinstance(each, Recompute | LibraryDefault):
                step = run_eagerly(model, example_inputs, each, loss)
                rows.append(_judge_eager(step, each, options, traced))
            elif traced is None:
                raise PolicyError(
                    f"{each}: it is a policy of a graph, and the model can't be traced: {remark}"
                )
            else:
                name, timeline = _on_graph(traced, each)
                rows.append(_judge_graph(traced, name, timeline))
                if not isinstance(each, MemoryBudget) and timeline.schedule.keeps_base_order:
                    problem = Problem(graph=traced.graph, budget=timeline.peak, fixed_order=True)
                    known.append(Solution.found(problem, timeline, solver="given"))
        frontier = None if traced is None or time_limit <= 0 else _frontier(traced, rows, known, time_limit)
    if frontier is not None:
        rows = [_with_best(row, frontier) for row in rows]
    return Judgement(rows=tuple(rows), frontier=frontier, remark=remark)


def _parsed(text: str) -> Recompute | LibraryDefault | MemoryBudget | Path:
    """A policy from text; the name of a file of Checkmate is the schedule in it."""
    return Path(text) if text.endswith((".json", ".msgpack")) else parsed(text)


def _judge_eager(
    step: EagerStep, policy: Recompute | LibraryDefault, options: Options, traced: TracedModel | None
) -> Judged:
    """Judge a step of eager PyTorch; the plain one has the peak that all other tools predict."""
    row = judge_step(step, policy, options, beside(traced))
    plain = None if traced is None else traced.plain_peak
    return replace(row, peak=plain) if policy == Recompute() and plain is not None else row


def judge_step(step: EagerStep, policy: object, options: Options, held: int = 0) -> Judged:
    """Judge a step that ran on fake tensors; ``held`` = bytes held throughout that it does not show."""
    priced = step.priced(options)
    costs = {key: op.cost for key, op in zip(step.samples, priced.ops, strict=True)}
    peak, last = step.peak({key: op.workspace for key, op in zip(step.samples, priced.ops, strict=True)})
    again = sum(costs[op.key] for op in step.ran if op.again)
    plain = sum(costs[op.key] for op in step.ran if not op.again)
    return Judged(
        policy=str(policy),
        peak=peak + held,
        overhead=again / plain if plain else 0.0,
        flops_again=step.flops_again,
        where=step.ran[-last].name,
        held=step.held_after(-last),
    )


def trace_or_reason(
    model: nn.Module,
    example_inputs: object,
    loss: Loss | None,
    device: str | torch.device | None,
    settings: Mapping[str, Any],
) -> tuple[TracedModel | None, str]:
    """The traced step; or None, and the reason why it can't be traced."""
    try:
        return trace(model, example_inputs, loss=loss, device=device, **settings), ""
    except UnsupportedModelError as error:
        return None, str(error)


def beside(traced: TracedModel | None) -> int:
    """Bytes that a traced step holds throughout beside its ops: reserve, optimizer state, libraries."""
    return 0 if traced is None else sum(traced.account.fixed.get(kind, 0) for kind in _BESIDES)


def _on_graph(traced: TracedModel, policy: MemoryBudget | Schedule | Solution | Path) -> tuple[str, Timeline]:
    """A policy in words, and its schedule of the traced graph, replayed."""
    if isinstance(policy, MemoryBudget):
        return str(policy), _partitioned(traced, policy)
    if isinstance(policy, Path):
        return f"schedule {policy.name}", _read(traced, policy)
    schedule = policy.schedule if isinstance(policy, Solution) else policy
    if schedule is None:
        raise PolicyError("the solution has no schedule")
    try:
        return "a schedule", simulate(traced.graph, schedule)
    except InvalidScheduleError as error:
        raise PolicyError(f"the schedule is not one of the traced graph: {error}") from error


def _read(traced: TracedModel, file: Path) -> Timeline:
    """The schedule in a file, replayed."""
    try:
        return simulate(traced.graph, read_schedule(file, traced.graph))
    except OSError as error:
        raise PolicyError(f"{file}: {error.strerror}") from error
    except FormatError as error:
        raise PolicyError(
            f"{error}. A schedule is judged on the graph of the same model, batch, loss and cost model: "
            "TracedModel.save and 'checkmate trace' write it"
        ) from error
    except InvalidScheduleError as error:
        raise PolicyError(f"{file}: the schedule is not valid: {error}") from error


def _judge_graph(traced: TracedModel, name: str, timeline: Timeline) -> Judged:
    op = timeline.peak_op
    return Judged(
        policy=name,
        peak=timeline.peak,
        overhead=timeline.overhead,
        where="the start" if op is None else timeline.graph.ops[op].name,
        held={str(kind): size for kind, size in traced.account.at_peak(timeline).items()},
    )


def _partitioned(traced: TracedModel, policy: MemoryBudget) -> Timeline:
    """The step as PyTorch's partitioner divides the joint graph.

    It may run again what a schedule of ours may not: the ops whose results the caller holds.
    """
    step, graph = traced.traced, traced.graph
    index = {node.name: v for v, node in enumerate(step.nodes) if node is not None}
    try:
        forward, backward = partition_within(step.as_joint, policy.share)
    except (RuntimeError, AssertionError, NotImplementedError, KeyError) as error:
        raise PolicyError(f"{policy}: PyTorch's partitioner fails: {type(error).__name__} {error}") from error
    ops = [index[name] for name in forward if name in index]
    ops += [] if step.boundary is None else [step.boundary]
    ops += [index[name] for name in backward if name in index]
    again = {v for v in ops if ops.count(v) > 1}
    free = tuple(replace(op, recomputable=op.recomputable or v in again) for v, op in enumerate(graph.ops))
    try:
        return simulate(replace(graph, ops=free), Schedule.from_sequence(graph, ops))
    except InvalidScheduleError as error:
        raise PolicyError(f"{policy}: PyTorch's partitioner runs it in another order: {error}") from error


def _frontier(
    traced: TracedModel, rows: Sequence[Judged], known: Sequence[Solution], time_limit: float
) -> Frontier:
    """The best schedules: at each peak of the rows, on a grid, and near the least peak of each overhead."""
    graph, options = traced.graph, traced.options
    least, most = floor(graph).size, max(row.peak for row in rows)
    frontier = Frontier(graph=graph, answers=tuple(known))

    def solve(budgets: Iterable[float]) -> None:
        nonlocal frontier
        sizes = [int(b) for b in budgets if b >= least]
        if sizes:
            found = sweep(graph, sizes, [options.solver], time_limit=time_limit, fixed_order=True)
            frontier = replace(found, answers=(*frontier.answers, *found.answers))

    grid = [least + (most - least) * k / _GRID for k in range(_GRID)]
    solve(sorted({row.peak for row in rows} | {*map(int, grid)}))
    for overhead in {row.overhead for row in rows}:
        for _ in range(_HALVINGS):
            best = _least_peak(frontier, overhead)
            below = [a.problem.budget for a in frontier.answers if best is None or a.problem.budget < best]
            if best is None or not below or best - max(below) < best // 200:
                break
            solve([(best + max(below)) / 2])
    return frontier


def _least_peak(frontier: Frontier, overhead: float) -> int | None:
    """The least peak of a known schedule of at most this overhead."""
    return next((p.peak for p in frontier.points if p.overhead <= overhead + 1e-9), None)


def _with_best(row: Judged, frontier: Frontier) -> Judged:
    best = frontier.at(row.peak)
    bounds = [
        proved_overhead(a)
        for a in frontier.answers
        if a.problem.budget >= row.peak and math.isfinite(a.bound)
    ]
    return replace(
        row,
        best_overhead=None if best is None else best.overhead,
        bound=max([0.0, *bounds]),
        best_peak=_least_peak(frontier, row.overhead),
    )


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"

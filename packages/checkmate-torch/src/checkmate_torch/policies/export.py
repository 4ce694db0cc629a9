"""The best policy that a tool can express, within a budget: plans for executors that are not ours.

    min cost(π)  over policies π of a target with  peak(π) ≤ budget

A target is a family of policies. Where each part of the model may run again in its own way, tables of their
effects (:mod:`checkmate_torch.policies.parts`) say which policy is the cheapest
(:mod:`checkmate_torch.policies.choose`). A family with few policies is a line on which the peak falls, and is
bisected. The policy that is found then runs on fake tensors, by PyTorch's own code
(:mod:`checkmate_torch.policies.eager`); that run is the prediction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn

from checkmate import Budget, UnsupportedModelError, solve
from checkmate.framework import proved_overhead, verdict
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.api.trace import TracedModel, options_for
from checkmate_torch.capture.arguments import Loss, check_loss, check_module
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.planning.options import Options, TracingModelSettings
from checkmate_torch.policies.choose import Choice, cheapest, least_peak
from checkmate_torch.policies.eager import EagerStep, run_eagerly
from checkmate_torch.policies.judge import Judged, beside, judge_step, trace_or_reason
from checkmate_torch.policies.parts import PartTables
from checkmate_torch.policies.policy import (
    EagerPolicy,
    LibraryDefault,
    PolicyError,
    Recompute,
    Save,
    apply,
    outermost_layers,
    own_checkpointing,
)

__all__ = ["TARGETS", "Exported", "checkpoint", "export"]

TARGETS = ("sac", "modules", "every-n-layers", "torchtitan")
"""What a policy can be written for."""

_CODE = """\
from collections import Counter
from functools import partial

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

PLAN = [  # modules that run again, and whose outputs are saved: op, numbers of its runs in a call of a module
{plan}]


def contexts(saved):
    runs = Counter()

    def policy(ctx, op, *args, **kwargs):
        name, run = str(op), runs[ctx.is_recompute, op]
        runs[ctx.is_recompute, op] += 1
        is_saved = run in saved.get(name, ())
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def apply(model):  # a model of transformers needs model.config.use_cache = False besides
    for names, saved in PLAN:
        context_fn = {{"context_fn": partial(contexts, saved)}} if saved else {{}}
        for name in names:
            module = model.get_submodule(name)
            module.forward = partial(checkpoint, module.forward, use_reentrant=False, **context_fn)
"""
_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exported:
    """The best policy found for a target and a budget.

    Attributes:
        policy: the policy.
        target: what it is written for.
        budget: bytes.
        judged: its prediction; ``best_overhead`` and ``bound`` are those of our own schedule in the budget.
        text: what to paste: Python code, or the string or the setting of the target; of torchtitan, ``none``
            = the policy without recomputation, "" = recomputation of all.
    """

    policy: EagerPolicy
    target: str
    budget: int
    judged: Judged
    text: str

    def apply(self, model: nn.Module) -> Callable[[], None]:
        """Let a model run under the policy from now on; returns what undoes that.

        Args:
            model: the one that the policy was made for, or one with the same modules.

        Raises:
            PolicyError: if its modules are others.
        """
        return apply(self.policy, model).close

    def __str__(self) -> str:
        """Prediction, and what is lost against our own schedule."""
        row = self.judged
        return verdict(row.policy, row.peak, self.budget, row.overhead, row.best_overhead, row.bound)

    def to_dict(self) -> dict[str, Any]:
        """The prediction and the text as plain values."""
        row = self.judged
        return {
            "target": self.target,
            "budget": self.budget,
            "policy": row.policy,
            "peak": row.peak,
            "overhead": row.overhead,
            "own_overhead": row.best_overhead,
            "bound": row.bound,
            "text": self.text,
        }


def export(
    model: nn.Module,
    example_inputs: object,
    budget: Budget,
    target: str = "sac",
    *,
    loss: Loss | None = None,
    device: str | torch.device | None = None,
    time_limit: float = 2.0,
    **settings: Unpack[TracingModelSettings],
) -> Exported:
    """Find the cheapest policy within a budget that a target can express; nothing is run.

    Args:
        model: as in :func:`checkmate_torch.trace`.
        example_inputs: as there.
        budget: bytes, a size, or a share of the plain peak.
        target: ``"sac"``: modules and policy functions for ``torch.utils.checkpoint``;
            ``"modules"``: a list of modules that run again whole; ``"every-n-layers"``: one number;
            ``"torchtitan"``: the save selectors of its full recomputation.
        loss: as there.
        device: as there.
        time_limit: seconds to solve for the schedule of our own that the policy is compared with; 0 = none.
        **settings: :class:`~checkmate_torch.planning.options.TracingModelSettings`.

    Raises:
        BudgetError: if the budget can't be read.
        PolicyError: if no policy of the target is within the budget; says the least peak found.
        UnsupportedModelError, CostError: as :func:`judge`.
        ValueError: if there is no such target.

    >>> layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)]
    >>> x = torch.zeros(1024, 64)
    >>> model = nn.Sequential(*layers)
    >>> found = export(model, x, "70%", "modules", loss=lambda y: y.sum(), cost_model="flops")
    >>> found.judged.peak <= found.budget
    True
    """
    if target not in TARGETS:
        raise ValueError(f"target is {target!r}, must be one of {', '.join(TARGETS)}")
    check_module(model)
    check_loss(loss)
    traced = None
    if time_limit > 0:
        traced, _ = trace_or_reason(model, example_inputs, loss, device, settings)
    options = options_for(Target.parse(device), **settings) if traced is None else traced.options
    with for_target(Target.parse(device)):
        search = _Search(model, example_inputs, loss, options, beside(traced))
        plain = search.judge_plain()
        search.budget = parse_budget(budget, plain.peak)
        if plain.peak > search.budget and target in {"sac", "modules"}:
            search.choose_parts(saves=target == "sac")
        elif plain.peak > search.budget:
            search.follow(_line(target, search))
        policy, judged = search.best()
    if traced is not None:
        judged = _compared(judged, traced, search.budget, time_limit)
    text = _text(target, policy, model)
    return Exported(policy=policy, target=target, budget=search.budget, judged=judged, text=text)


def checkpoint(
    model: nn.Module,
    example_inputs: object,
    budget: Budget,
    target: str = "sac",
    *,
    loss: Loss | None = None,
    **settings: Unpack[TracingModelSettings],
) -> Exported:
    """Train a model within a budget by PyTorch's own ``torch.utils.checkpoint``, chosen well; in place.

    Nothing of this package runs in a training step: a few modules recompute, as :func:`export` finds. Models
    that :func:`enable` refuses train too, such as those with graph breaks. The peak is that of forward and
    backward pass; an optimizer's state is counted if it is passed as the setting ``optimizer``.

    Args:
        model: changed in place; ``found.apply`` does the same to another model.
        example_inputs: as in :func:`export`.
        budget: as there.
        target: as there; ``"sac"`` or ``"modules"``.
        loss: as there.
        **settings: as there.

    Raises:
        BudgetError, PolicyError, UnsupportedModelError, CostError, ValueError: as :func:`export`.
    """
    found = export(model, example_inputs, budget, target, loss=loss, time_limit=0, **settings)
    found.apply(model)
    return found


class _Search:
    """The policies that were judged, and the best of them within the budget."""

    def __init__(
        self, model: nn.Module, example_inputs: object, loss: Loss | None, options: Options, beside: int
    ) -> None:
        self.model, self.example_inputs, self.loss = model, example_inputs, loss
        self.options, self.beside, self.budget = options, beside, 0
        self.found: dict[EagerPolicy, Judged] = {}
        self.known: dict[Hashable, tuple[float, int]] = {}

    def run(self, policy: EagerPolicy, *, notes_calls: bool = False) -> EagerStep:
        """The step under a policy."""
        return run_eagerly(self.model, self.example_inputs, policy, self.loss, notes_calls=notes_calls)

    def judge_plain(self) -> Judged:
        """Judge the step without recomputation."""
        self.plain = self.run(Recompute(), notes_calls=True)
        return self.note(self.plain, Recompute())

    def note(self, step: EagerStep, policy: EagerPolicy) -> Judged:
        """Judge a policy whose step ran."""
        self.found[policy] = judge_step(step, policy, self.options, self.beside)
        return self.found[policy]

    def judged(self, policy: EagerPolicy) -> Judged:
        """A policy's peak and cost."""
        return self.found.get(policy) or self.note(self.run(policy), policy)

    def fits(self, policy: EagerPolicy) -> bool:
        """Whether a policy is within the budget; one that saves what is overwritten later is not."""
        try:
            return self.judged(policy).peak <= self.budget
        except UnsupportedModelError:
            if isinstance(policy, Recompute) and policy.save:
                return False
            raise

    def choose_parts(self, *, saves: bool) -> None:
        """Judge the cheapest choices of parts that tables predict to fit, which corrects the tables."""
        tables = PartTables(partial(self.run, notes_calls=True), self.prices, self.plain)
        if not tables.parts:
            raise PolicyError("the model has no repeated layers: name modules in a Recompute policy")
        tables.fill(saves=saves)
        room, tries = float(self.budget - self.beside), 0
        while tries < _TRIES and (choice := cheapest(tables, room)) is not None:
            row = self.found.get(choice.policy)
            if row is None:
                self.try_choice(tables, choice)
                tries += 1
            elif row.peak <= self.budget:
                return
            else:
                room = min(room - row.peak + self.budget, choice.peak - 1)
        if not any(row.peak <= self.budget for row in self.found.values()):
            self.try_choice(tables, least_peak(tables))

    def try_choice(self, tables: PartTables, choice: Choice) -> None:
        """Judge a choice, and correct the tables; one that saves what is overwritten later is forgotten."""
        try:
            step = tables.learn(choice.options)
        except UnsupportedModelError:
            tables.forget(choice.options)
            return
        self.note(step, choice.policy)

    def prices(self, step: EagerStep) -> Mapping[Hashable, tuple[float, int]]:
        """Cost and workspace of each op of a step; each distinct op is priced once."""
        new = replace(step, samples={k: v for k, v in step.samples.items() if k not in self.known})
        ops = new.priced(self.options).ops if new.samples else ()
        self.known |= {key: (op.cost, op.workspace) for key, op in zip(new.samples, ops, strict=True)}
        return self.known

    def follow(self, line: Sequence[EagerPolicy]) -> None:
        """Judge the first policy of a line that fits, by bisection."""
        low, high = 0, len(line)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(line[middle]) else (middle + 1, high)

    def best(self) -> tuple[EagerPolicy, Judged]:
        """The cheapest policy within the budget; of equally cheap ones that of the lowest peak."""
        fitting = [item for item in self.found.items() if item[1].peak <= self.budget]
        if not fitting:
            least = min(self.found.values(), key=lambda judged: judged.peak)
            raise PolicyError(
                f"no policy that was tried is within {format_bytes(self.budget)}: the least peak is "
                f"{format_bytes(least.peak)}, at {least.where}. enable() and compile() may need less"
            )
        return min(fitting, key=lambda item: (item[1].overhead, item[1].peak))


def _line(target: str, search: _Search) -> Sequence[EagerPolicy]:
    """The policies of a target that has few, so that the peak falls along the line."""
    layers = outermost_layers(search.model)
    if not layers:
        raise PolicyError("the model has no repeated layers: name modules in a Recompute policy")
    if target == "torchtitan":
        rules = _rules(search, layers)
        return [Recompute(modules=layers, save=tuple(rules[:n])) for n in range(len(rules), -1, -1)]
    numbers = range(len(layers), 0, -1)
    if own_checkpointing(search.model).endswith("_enable"):
        return [LibraryDefault(every=n) for n in numbers]
    return [Recompute(modules=layers, every=n) for n in numbers]


def _rules(search: _Search, layers: tuple[str, ...]) -> list[Save]:
    """Outputs that all layers may save, by the module that runs an op; the most expensive per byte first."""
    step = search.run(Recompute(modules=layers))
    prices = search.prices(step)
    made: dict[int, int] = {}
    for before, _, size in step.changes:
        made[before] = made.get(before, 0) + size
    worth: dict[tuple[str, str], float] = {}
    weight: dict[tuple[str, str], int] = {}
    for k, ran in enumerate(step.ran):
        if ran.run is None:
            continue
        rule = (ran.op, re.sub(r"\b\d+\b", "*", ran.module))
        if ran.again:
            worth[rule] = worth.get(rule, 0.0) + prices[ran.key][0]
        else:
            weight[rule] = weight.get(rule, 0) + made.get(k, 0)
    useful = [rule for rule in worth if worth[rule] > 0 and weight.get(rule, 0) > 0]
    useful.sort(key=lambda rule: -worth[rule] / weight[rule])
    return [Save(op=op, module=module) for op, module in useful]


def _compared(judged: Judged, traced: TracedModel, budget: int, time_limit: float) -> Judged:
    """The prediction, beside our own schedule for the budget."""
    solution = solve(
        traced.graph,
        budget,
        solver=traced.options.solver,
        time_limit=time_limit,
        fixed_order=True,
        throw=False,
    )
    return replace(
        judged,
        best_overhead=None if solution.timeline is None else solution.overhead,
        bound=0.0 if solution.timeline is None else proved_overhead(solution),
    )


def _text(target: str, policy: EagerPolicy, model: nn.Module) -> str:
    """What to paste for a policy."""
    if isinstance(policy, LibraryDefault):
        return f"model.{own_checkpointing(model)}(every_n_layers={policy.every})"
    save = policy.save if isinstance(policy.save, tuple) else ()
    if target == "torchtitan" and not policy.modules:
        return "none"
    if target == "torchtitan":
        return " | ".join(f"{rule.module} :: {rule.op}" for rule in save)
    return _CODE.format(plan="".join(map(_listed, policy.rules if policy.modules else ())))


def _listed(rule: Recompute) -> str:
    """One rule as a line of the pasted plan: the modules, and the runs of each op."""
    saved: dict[str, set[int]] = {}
    for save in rule.save if isinstance(rule.save, tuple) else ():
        saved.setdefault(save.op, set()).update(save.which or ())
    names = list(rule.modules[:: rule.every])
    return f"    ({names!r}, { ({op: sorted(runs) for op, runs in saved.items()})!r}),\n"

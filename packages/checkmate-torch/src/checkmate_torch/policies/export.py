"""The best policy that a tool can express, within a budget: plans for executors that are not ours.

    min cost(π)  over policies π of a target with  peak(π) ≤ budget

A target is a family of policies. It is searched along lines on which the peak falls and the cost rises: how
many layers run again, which ops are saved, the most expensive per byte first. Every candidate is judged as
PyTorch would run it (:mod:`checkmate_torch.policies.eager`), so the prediction is that of the policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import nn

from checkmate import Budget, UnsupportedModelError, solve
from checkmate.units import format_bytes, parse_budget
from checkmate_torch.api.trace import TracedModel, options_for
from checkmate_torch.capture.arguments import Loss, check_loss, check_module
from checkmate_torch.ops.device import Target, for_target
from checkmate_torch.planning.options import Options, TracingModelSettings
from checkmate_torch.policies.eager import EagerStep, run_eagerly
from checkmate_torch.policies.judge import Judged, beside, judge_step, trace_or_reason
from checkmate_torch.policies.policy import (
    EagerPolicy,
    LibraryDefault,
    PolicyError,
    Recompute,
    Save,
    apply,
    layers_of,
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

MODULES = {modules}
SAVED = {saved}  # op: numbers of its runs in a call of a module


def contexts():
    runs = Counter()

    def policy(ctx, op, *args, **kwargs):
        name, run = str(op), runs[ctx.is_recompute, op]
        runs[ctx.is_recompute, op] += 1
        is_saved = run in SAVED.get(name, ())
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def apply(model):  # a model of transformers needs model.config.use_cache = False besides
    for name in MODULES:
        module = model.get_submodule(name)
        settings = {{"use_reentrant": False}} | ({{"context_fn": contexts}} if SAVED else {{}})
        module.forward = partial(checkpoint, module.forward, **settings)
"""


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
        text = f"{row.policy}: {format_bytes(row.peak)} of {format_bytes(self.budget)} at {row.overhead:+.1%}"
        if row.best_overhead is None:
            return text
        proved = f", proved: at least {row.bound:+.1%}" if row.bound > 0 else ""
        return f"{text}; our own schedule: {row.best_overhead:+.1%}{proved}"

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
        target: ``"sac"``: a list of modules and a policy function for ``torch.utils.checkpoint``;
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
        plain = search.judged(Recompute())
        search.budget = parse_budget(budget, plain.peak)
        if plain.peak > search.budget:
            for line in _lines(target, search):
                search.follow(line)
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

    def run(self, policy: EagerPolicy) -> EagerStep:
        """The step under a policy."""
        return run_eagerly(self.model, self.example_inputs, policy, self.loss)

    def judged(self, policy: EagerPolicy) -> Judged:
        """A policy's peak and cost."""
        if policy not in self.found:
            self.found[policy] = judge_step(self.run(policy), policy, self.options, self.beside)
        return self.found[policy]

    def fits(self, policy: EagerPolicy) -> bool:
        """Whether a policy is within the budget; one that saves what is overwritten later is not."""
        try:
            return self.judged(policy).peak <= self.budget
        except UnsupportedModelError:
            if isinstance(policy, Recompute) and policy.save:
                return False
            raise

    def follow(self, line: Sequence[EagerPolicy]) -> int:
        """Judge the first policy of a line that fits, by bisection; returns its position, or the length."""
        low, high = 0, len(line)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(line[middle]) else (middle + 1, high)
        return low

    def best(self) -> tuple[EagerPolicy, Judged]:
        """The cheapest policy within the budget; of equally cheap ones that of the lowest peak."""
        fitting = [item for item in self.found.items() if item[1].peak <= self.budget]
        if not fitting:
            least = min(judged.peak for judged in self.found.values())
            raise PolicyError(
                f"no policy that was tried is within {format_bytes(self.budget)}: the least peak is "
                f"{format_bytes(least)}. enable() and compile() may need less"
            )
        return min(fitting, key=lambda item: (item[1].overhead, item[1].peak))


def _lines(target: str, search: _Search) -> Iterator[Sequence[EagerPolicy]]:
    """The lines of policies of a target, on each of which the peak falls."""
    layers = outermost_layers(search.model)
    if not layers:
        raise PolicyError("the model has no repeated layers: name modules in a Recompute policy")
    if target == "torchtitan":
        yield from _saving(search, layers, by_module=True)
        return
    numbers = range(len(layers), 0, -1)
    if target == "every-n-layers" and own_checkpointing(search.model):
        yield [LibraryDefault(every=n) for n in numbers]
        return
    yield [Recompute(modules=layers, every=n) for n in numbers]
    if target == "every-n-layers":
        return
    for names in _module_sets(search.model, layers):
        yield [Recompute(modules=names[:k]) for k in range(1, len(names) + 1)]
    if target == "sac":
        yield from _saving(search, layers, by_module=False)


def _module_sets(model: nn.Module, layers: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Layers; with what is beside them; each kind of part that has parts itself; all parts of the layers."""
    known = {name: module for name, module in model.named_modules() if name}
    above = {name for name in known if any(layer.startswith(f"{name}.") for layer in layers)}
    whole = tuple(n for n in known if n not in above and (n.rpartition(".")[0] in {"", *above}))
    depth = layers[0].count(".") + 1
    groups = layers_of(model)
    parts = [names for names in groups if names[0].count(".") == depth and [*known[names[0]].children()]]
    together = tuple(n for n in known if n.count(".") == depth and n.rpartition(".")[0] in layers)
    return list(dict.fromkeys(filter(None, (layers, whole, *parts, together))))


def _saving(search: _Search, layers: tuple[str, ...], *, by_module: bool) -> Iterator[Sequence[EagerPolicy]]:
    """All layers recomputed, saving fewer and fewer outputs; then the same for the first layers only."""
    rules = _rules(search, layers, by_module=by_module)
    line = [Recompute(modules=layers, save=tuple(rules[:n])) for n in range(len(rules), -1, -1)]
    yield line
    kept = search.follow(line)  # judged already
    if by_module or kept >= len(line):
        return
    save = line[kept].save
    for n in {0, len(rules) - kept, (len(rules) - kept) // 2}:
        save = tuple(rules[:n])
        yield [Recompute(modules=layers[:k], save=save) for k in range(1, len(layers) + 1)]


def _rules(search: _Search, layers: tuple[str, ...], *, by_module: bool) -> list[Save]:
    """Outputs that a policy may save, as rules; those whose recomputation costs most per byte come first.

    Layers are alike, so a rule is about the run of an op in each of them, or about the module that runs it.
    """
    step = search.run(Recompute(modules=layers))
    costs = {k: op.cost for k, op in zip(step.samples, step.priced(search.options).ops, strict=True)}
    made: dict[int, int] = {}
    for before, _, size in step.changes:
        made[before] = made.get(before, 0) + size
    worth: dict[tuple[str, str, int | None], float] = {}
    weight: dict[tuple[str, str, int | None], int] = {}
    for k, ran in enumerate(step.ran):
        if ran.run is None:
            continue
        where = re.sub(r"\b\d+\b", "*", ran.module) if by_module else "*"
        rule = (ran.op, where, None if by_module else ran.run)
        if ran.again:
            worth[rule] = worth.get(rule, 0.0) + costs[ran.key]
        else:
            weight[rule] = weight.get(rule, 0) + made.get(k, 0)
    useful = [rule for rule in worth if worth[rule] > 0 and weight.get(rule, 0) > 0]
    useful.sort(key=lambda rule: -worth[rule] / weight[rule])
    return [
        Save(op=op, module=module, which=None if run is None else frozenset({run}))
        for op, module, run in useful
    ]


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
    ideal = traced.graph.ideal_cost
    return replace(
        judged,
        best_overhead=None if solution.timeline is None else solution.overhead,
        bound=max(0.0, solution.bound / ideal - 1) if solution.timeline is not None and ideal > 0 else 0.0,
    )


def _text(target: str, policy: EagerPolicy, model: nn.Module) -> str:
    """What to paste for a policy."""
    if isinstance(policy, LibraryDefault):
        return f"model.{own_checkpointing(model)}_enable(every_n_layers={policy.every})"
    save = policy.save if isinstance(policy.save, tuple) else ()
    if target == "torchtitan" and not policy.modules:
        return "none"
    if target == "torchtitan":
        return " | ".join(f"{rule.module} :: {rule.op}" for rule in save)
    modules = list(policy.modules[:: policy.every])
    saved: dict[str, set[int]] = {}
    for rule in save:
        saved.setdefault(rule.op, set()).update(rule.which or ())
    return _CODE.format(modules=_listed(modules), saved=_listed_ops(saved))


def _listed(names: Sequence[str]) -> str:
    return "[\n" + "".join(f"    {name!r},\n" for name in names) + "]" if names else "[]"


def _listed_ops(saved: Mapping[str, set[int]]) -> str:
    rows = (f"    {op!r}: {{{', '.join(map(str, sorted(runs)))}}},\n" for op, runs in saved.items())
    return "{\n" + "".join(rows) + "}" if saved else "{}"

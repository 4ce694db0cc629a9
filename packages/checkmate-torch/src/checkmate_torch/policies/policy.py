"""Policies: which modules run again in the backward pass, and which of their ops keep their outputs.

    Recompute      torch.utils.checkpoint around modules, by name, every n-th, or with ops that are saved
    LibraryDefault the model's own gradient checkpointing, as transformers, diffusers and timm have it
    MemoryBudget   activation_memory_budget of torch.compile
    a schedule     of the traced graph

The first two change how eager PyTorch runs the model; :func:`applied` makes and undoes that change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial, update_wrapper
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from checkmate import CheckmateError
from checkmate_torch.ops.storages import tensors_in

__all__ = [
    "Call",
    "EagerPolicy",
    "LibraryDefault",
    "MemoryBudget",
    "Place",
    "PolicyError",
    "Recompute",
    "Save",
    "SavePolicy",
    "applied",
    "apply",
    "layers_of",
    "outermost_layers",
    "own_checkpointing",
    "parsed",
    "usual_policies",
]

SavePolicy = Callable[..., CheckpointPolicy]
"""A policy function of ``torch.utils.checkpoint``: (context, op, arguments) ↦ save or recompute."""

_Contexts = Callable[[], tuple[AbstractContextManager[object], AbstractContextManager[object]]]


class PolicyError(CheckmateError, ValueError):
    """A policy that can't be read, or that the model can't run under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Ops whose outputs a selective policy saves.

    Attributes:
        op: name with overload, ``"aten.addmm.default"``; ``*`` matches any text.
        module: path of the module that runs the op; ``*`` matches any text.
        which: which runs of the op in one call of the recomputed module, counted from 0; None = all.
    """

    op: str
    module: str = "*"
    which: frozenset[int] | None = None

    def __str__(self) -> str:
        some = "" if self.which is None else "#" + ",".join(map(str, sorted(self.which)))
        return f"{self.module} :: {self.op}{some}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """``torch.utils.checkpoint`` around modules, without reentrant autograd.

    Attributes:
        modules: paths in ``model.named_modules()``, in which ``*`` matches any text; none = plain training.
        every: of these modules in the order of their paths, the first and every n-th after it.
        save: ops whose outputs are saved, or a policy function of
            ``create_selective_checkpoint_contexts``; none = the module runs again whole.
        also: policies of other modules, or of parts of these, in force at the same time.
    """

    modules: tuple[str, ...] = ()
    every: int = 1
    save: tuple[Save, ...] | SavePolicy = ()
    also: tuple[Recompute, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(_in_words, self.rules)) if self.modules else "plain"

    @property
    def rules(self) -> tuple[Recompute, ...]:
        """This policy without ``also``, and those."""
        return (replace(self, also=()), *self.also)


def _in_words(rule: Recompute) -> str:
    nth = f", every {rule.every}" if rule.every > 1 else ""
    saved = " | ".join(map(str, rule.save)) if isinstance(rule.save, tuple) else "a policy function"
    names = ", ".join(rule.modules) if len(rule.modules) < _NAMED else f"{len(rule.modules)} modules"
    return f"checkpoint {names}{nth}" + (f", saved: {saved}" if saved else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryDefault:
    """The model's own checkpointing, as its library turns it on.

    Models of transformers have ``gradient_checkpointing_enable()`` or ``activation_checkpointing_enable()``,
    those of diffusers ``enable_gradient_checkpointing()``, those of timm ``set_grad_checkpointing()``.

    Attributes:
        every: ``every_n_layers``; only transformers has it, from 5.17 on.
    """

    every: int = 1

    def __str__(self) -> str:
        return "the library's checkpointing" + (f", every {self.every} layers" if self.every > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """``torch._functorch.config.activation_memory_budget``: PyTorch's partitioner, as in ``torch.compile``.

    Attributes:
        share: of the bytes that are saved between both passes, from 0 to 1.
    """

    share: float

    def __str__(self) -> str:
        return f"activation_memory_budget = {self.share:g}"


EagerPolicy = Recompute | LibraryDefault
_NAMED = 4
_TIMM = "set_grad_checkpointing"
_OWN = (
    *("activation_checkpointing_enable", "gradient_checkpointing_enable"),  # transformers; the second is old
    *("enable_gradient_checkpointing", _TIMM),  # diffusers, timm
)


def parsed(text: str) -> Recompute | LibraryDefault | MemoryBudget:
    """A policy from text, as the command line takes it.

    ============================================  ======================================================
    ``plain``                                     nothing runs again
    ``library``, ``library/2``                    the model's own checkpointing, of every second layer
    ``blocks.*``, ``a.*,b.*``, ``blocks.*/2``     these modules, of ``blocks.*`` every second one
    ``blocks.* save aten.mm.default | …``         with ops that are saved; ``attn :: aten.mm.default`` only
                                                  in modules of this path (torchtitan's save selectors)
    ``blocks.0; blocks.1 save aten.mm.default``   several of these at the same time
    ``budget=0.5``                                ``activation_memory_budget``
    ============================================  ======================================================

    Raises:
        PolicyError: if it is none of these.

    >>> str(parsed("blocks.*/2 save *.mlp :: aten.addmm.default"))
    'checkpoint blocks.*, every 2, saved: *.mlp :: aten.addmm.default'
    """
    if ";" in text:
        return _several(text)
    names, _, selectors = text.partition(" save ")
    names, _, nth = names.strip().partition("/")
    try:
        every = int(nth or 1)
        share = float(names.removeprefix("budget=")) if names.startswith("budget=") else None
    except ValueError as error:
        raise PolicyError(f"policy {text!r}: {error}; write blocks.*/2, library/2 or budget=0.5") from error
    if every < 1 or (share is not None and not 0 <= share <= 1) or not names:
        raise PolicyError(f"policy {text!r}: layers are every n ≥ 1, and a budget is a share from 0 to 1")
    if share is not None:
        return MemoryBudget(share=share)
    if names == "library":
        return LibraryDefault(every=every)
    if names == "plain":
        return Recompute()
    save = tuple(_selector(part) for part in selectors.split("|")) if selectors else ()
    return Recompute(modules=tuple(n.strip() for n in names.split(",")), every=every, save=save)


def _several(text: str) -> Recompute:
    parts = [parsed(part) for part in text.split(";")]
    rules = [part for part in parts if isinstance(part, Recompute) and part.modules]
    if len(rules) < len(parts):
        raise PolicyError(f"policy {text!r}: each part between ; must name modules")
    return replace(rules[0], also=tuple(rules[1:]))


def _selector(text: str) -> Save:
    module, _, op = text.rpartition("::")
    op, _, runs = op.strip().partition("#")
    if not re.fullmatch(r"[\w.*]+", op) or not re.fullmatch(r"[\d,]*", runs):
        raise PolicyError(
            f"{text.strip()!r} names no op: write aten.mm.default or attn :: aten.mm.default#0,2"
        )
    which = frozenset(map(int, runs.split(","))) if runs else None
    return Save(op=op, module=module.strip() or "*", which=which)


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module: numbers of ops that ran before its beginning, its end, and its backward pass.

    ``back`` is None if no gradient reaches the module.
    """

    path: str
    begin: int
    end: int = 0
    back: int | None = None


@dataclass(slots=True, eq=False)
class Place:
    """Where a step under a policy is.

    Attributes:
        modules: those that run, innermost last.
        again: number of recomputations around.
        calls: number of calls of checkpointed modules so far, recomputations left out.
        runs: how often each op has run in this call of the module that is checkpointed; None = outside.
        mode: makes what recomputations run in: PyTorch runs a backward pass, and what it recomputes, outside
            of modes that change functions.
        clock: the number of ops that ran; None = calls of modules are not noted.
        noted: the calls of modules that have parts, in order, recomputations left out.
    """

    modules: list[str] = field(default_factory=list)
    again: int = 0
    calls: int = 0
    runs: Counter[str] | None = None
    mode: Callable[[], AbstractContextManager[object]] = nullcontext
    clock: Callable[[], int] | None = None
    noted: list[Call] = field(default_factory=list)

    @contextmanager
    def within(self, name: str, has_parts: bool) -> Iterator[Callable[[object], None]]:
        """Inside the block a module runs; what is returned takes the module's output."""
        self.modules.append(name)
        clock = self.clock if has_parts and not self.again else None
        call = None if clock is None else Call(name, clock())
        if call is not None:
            self.noted.append(call)

        def starts_backward(_gradient: object) -> None:
            if call is not None and clock is not None and call.back is None:
                call.back = clock()

        def ends(output: object) -> None:
            if call is None or clock is None:
                return
            call.end = clock()
            for x in tensors_in(output):
                if x.requires_grad:
                    x.register_hook(starts_backward)  # type: ignore[no-untyped-call]

        try:
            yield ends
        finally:
            self.modules.pop()

    @contextmanager
    def inside(self, again: int) -> Iterator[None]:
        """Inside the block a checkpointed module runs; for the first time, or ``again``."""
        before, self.runs = self.runs, Counter()
        self.again += again
        self.calls += not again
        try:
            with self.mode() if again else nullcontext():
                yield
        finally:
            self.again -= again
            self.runs = before


def apply(policy: EagerPolicy, model: nn.Module, place: Place | None = None) -> ExitStack:
    """Let a model run under a policy from now on.

    Args:
        policy: what runs again.
        model: its modules' ``forward`` is replaced, each by one of the same meaning.
        place: kept up to date while the model runs; None = of no interest.

    Returns:
        What undoes that, when it is closed.

    Raises:
        PolicyError: if the policy does not suit the model.
    """
    with ExitStack() as undo:
        if place is not None:
            _note_modules(model, place, undo)
        if isinstance(policy, LibraryDefault):
            _enable_library(policy, model, place, undo)
        else:
            _checkpoint_modules(policy, model, place, undo)
        return undo.pop_all()


@contextmanager
def applied(policy: EagerPolicy, model: nn.Module, place: Place | None = None) -> Iterator[None]:
    """Run a model under a policy within the block, as :func:`apply` does."""
    with apply(policy, model, place):
        yield


def _checkpoint_modules(policy: Recompute, model: nn.Module, place: Place | None, undo: ExitStack) -> None:
    chosen, known = [(r, _chosen(r, model)) for r in policy.rules], dict(model.named_modules())
    if not policy.modules:
        return
    where = place or Place()
    saves = [s for r in policy.rules if isinstance(r.save, tuple) for s in r.save]
    if place is None and any(s.module != "*" for s in saves):
        _note_modules(model, where, undo)
    for module in known.values():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False  # a cache of keys would be extended again
            undo.callback(setattr, config, "use_cache", True)
    for rule, names in chosen:
        for name in names:
            again = partial(_contexts, rule.save, where)
            undo.callback(_replace(known[name], partial(_checkpointed, known[name].forward, again)))


def _chosen(policy: Recompute, model: nn.Module) -> list[str]:
    """The paths of the modules that run again: of a nest the outermost."""
    names = [name for name, _ in model.named_modules() if name]
    for pattern in policy.modules:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PolicyError(f"no module of the model has a path like {pattern!r}")
    found = [n for n in names if any(fnmatchcase(n, pattern) for pattern in policy.modules)]
    outer = [n for n in found if not any(n.startswith(f"{other}.") for other in found)]
    return outer[:: policy.every]


def _enable_library(policy: LibraryDefault, model: Any, place: Place | None, undo: ExitStack) -> None:
    name = own_checkpointing(model)
    if not name:
        raise PolicyError(f"{type(model).__name__} has no gradient checkpointing of its own")
    kwargs: dict[str, Any] = {}
    if name.endswith("_enable"):  # of transformers
        again = {"use_reentrant": False, "context_fn": partial(_contexts, (), place or Place())}
        kwargs[f"{name.removesuffix('_enable')}_kwargs"] = again
    elif place is not None:  # timm and diffusers call PyTorch's function, and pass on no settings
        noted = patch.object(torch.utils.checkpoint, "checkpoint", partial(_noting, checkpoint, place))
        undo.enter_context(noted)
    if policy.every > 1:
        kwargs["every_n_layers"] = policy.every
    undo.callback(partial(model.set_grad_checkpointing, False) if name == _TIMM else _disabling(model, name))
    try:
        getattr(model, name)(**kwargs)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{type(model).__name__}.{name}(): {error}") from error


def _disabling(model: Any, name: str) -> Callable[[], object]:
    return getattr(model, name.replace("enable", "disable"))  # type: ignore[no-any-return]


def _noting(function: Callable[..., object], place: Place, *args: Any, **kwargs: Any) -> object:
    """PyTorch's checkpoint, which keeps a place up to date."""
    again = {"context_fn": partial(_contexts, (), place)} if kwargs.get("use_reentrant") is False else {}
    return function(*args, **again | kwargs)


def _note_modules(model: nn.Module, place: Place, undo: ExitStack) -> None:
    """Keep a place up to date while the parts of a model run."""
    for name, module in model.named_modules():
        if name:
            has_parts = next(module.children(), None) is not None
            undo.callback(_replace(module, partial(_noted, module.forward, name, has_parts, place)))


def _replace(module: nn.Module, forward: partial[object]) -> Callable[[], None]:
    """Replace a module's forward by one with the same signature; returns what undoes that."""
    before = vars(module).get("forward")
    vars(module)["forward"] = update_wrapper(forward, module.forward)

    def undo() -> None:
        if before is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = before

    return undo


def _noted(
    forward: Callable[..., object], name: str, has_parts: bool, place: Place, *args: object, **kwargs: object
) -> object:
    with place.within(name, has_parts) as ends:
        output = forward(*args, **kwargs)
        ends(output)
        return output


def _checkpointed(forward: Callable[..., object], contexts: _Contexts, *args: Any, **kwargs: Any) -> object:
    """Checkpoint a call if autograd records it; else there is nothing to recompute."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(
    save: Sequence[Save] | SavePolicy, place: Place
) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """The contexts of a checkpoint's first run and of its recomputation."""
    if not save:
        return place.inside(0), place.inside(1)
    function = save if callable(save) else _Saved(save, place)
    first, cached = create_selective_checkpoint_contexts(function)  # type: ignore[no-untyped-call]
    return _both(place.inside(0), first), _both(place.inside(1), cached)


@contextmanager
def _both(*contexts: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


class _Saved:
    """A policy function that saves the ops that are listed, by op, module and run."""

    def __init__(self, save: Sequence[Save], place: Place) -> None:
        self.save, self.place = save, place
        self.runs: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}

    def __call__(self, ctx: Any, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        name, runs = str(op), self.runs[ctx.is_recompute]
        run, where = runs[name], self.place.modules[-1] if self.place.modules else ""
        runs[name] += 1
        for rule in self.save:
            within = rule.which is None or run in rule.which
            if within and fnmatchcase(name, rule.op) and fnmatchcase(where, rule.module):
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE


def layers_of(model: nn.Module) -> list[tuple[str, ...]]:
    """The repeated parts of a model, as paths of modules that differ in numbers only, the outermost first.

    >>> layers_of(nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(2, 2) for _ in range(3))}))
    [('blocks.0', 'blocks.1', 'blocks.2')]
    """
    found: dict[str, list[str]] = {}
    for name, _ in model.named_modules():
        if (pattern := re.sub(r"\b\d+\b", "*", name)) != name:
            found.setdefault(pattern, []).append(name)
    several = [tuple(names) for names in found.values() if len(names) > 1]
    return sorted(several, key=lambda names: names[0].count("."))


def outermost_layers(model: nn.Module) -> tuple[str, ...]:
    """The outermost repeated parts of a model, in its order."""
    groups = layers_of(model)
    depth = groups[0][0].count(".") if groups else 0
    return tuple(name for names in groups if names[0].count(".") == depth for name in names)


def own_checkpointing(model: nn.Module) -> str:
    """The method that turns on the checkpointing that the library of a model has for it; "" = it has none."""
    supported = getattr(model, "supports_gradient_checkpointing", True)
    supported = supported and getattr(model, "_supports_gradient_checkpointing", True)
    return next((name for name in _OWN if supported and hasattr(model, name)), "")


def usual_policies(model: nn.Module) -> list[EagerPolicy]:
    """What is usually done: the model's own checkpointing, or that of its outermost repeated parts."""
    if own_checkpointing(model):
        return [LibraryDefault()]
    layers = outermost_layers(model)
    return [Recompute(modules=layers)] if layers else []

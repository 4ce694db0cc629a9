"""The parts of a model, and what each gains if it runs again: tables from a few steps on fake tensors.

    part x, option o ↦ (Δheld, Δforward, Δbackward, cost)

A part is a module that has parts itself and that a step calls once. Between its forward pass and its backward
pass, a part under an option holds ``Δheld`` bytes more (mostly fewer) than in the plain step. While it runs,
the most live bytes above those at its beginning differ by ``Δforward`` and ``Δbackward``. Parts that run the
same ops share their tables, so that one step tries a different option in each.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from checkmate import UnsupportedModelError
from checkmate_torch.policies.eager import EagerStep
from checkmate_torch.policies.policy import Call, Recompute, Save

__all__ = ["Again", "Effect", "Part", "PartTables", "joined"]

_LEVELS = 32
"""Numbers of saved outputs that a part can have, about."""

_SHARE_OF_WHOLE = 0.6
_SHARE_OF_SAVING = 0.5
_SHARE_OF_NOTHING = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """How a part runs again.

    Attributes:
        save: ops whose outputs are saved.
        inner: whether its own parts run again, too, within it: that lowers the peak while it runs again.
    """

    save: tuple[Save, ...] = ()
    inner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A module that a step calls once.

    Attributes:
        path: of the module.
        first: number of the first smallest part within it; its own if it has none.
        last: number of the last one.
        parts: those within it, in the order of their calls.
        alike: equal for parts that run the same ops.
        held: bytes that it holds in the plain step, between its forward and its backward pass.
    """

    path: str
    first: int
    last: int
    parts: tuple[Part, ...]
    alike: int
    held: int

    def policies(self, option: Again) -> list[Recompute]:
        """The policy by which this part runs again."""
        outer = Recompute(modules=(self.path,), save=option.save)
        inner = [Recompute(modules=(part.path,)) for part in self.parts] if option.inner else []
        return [outer, *inner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an option changes against the plain step: bytes held and at the peaks of both passes; its cost."""

    held: int
    forward: int
    backward: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """A step, divided by the smallest parts: the most bytes at once in each piece.

    Attributes:
        at: bytes that were made before each smallest part begins, or before the last one ends, and live
            until the backward pass.
        forward: the peak from the beginning of each to that of the next.
        backward: the peak from the beginning of the backward pass of each to that of the part before.
        beside: the peak outside of these: before the first part, and between both passes.
    """

    at: tuple[int, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    beside: float

    def __sub__(self, plain: Windows) -> Callable[[Part, float], Effect]:
        """The effect on a part of what happens in this step, at a cost."""

        def effect(part: Part, cost: float) -> Effect:
            mine, others = self.of(part), plain.of(part)
            held, forward, backward = (a - b for a, b in zip(mine, others, strict=True))
            return Effect(held=held, forward=forward, backward=backward, cost=cost)

        return effect

    def of(self, part: Part) -> tuple[int, int, int]:
        """Bytes that a part holds, and its peaks, above those that live at its beginning."""
        pieces = slice(part.first, part.last + 1)
        start = self.at[part.first]
        peaks = (max(peaks[pieces]) for peaks in (self.forward, self.backward))
        forward, backward = (int(peak) - start if math.isfinite(peak) else 0 for peak in peaks)
        return self.at[part.last + 1] - start, forward, backward


def joined(policies: Sequence[Recompute]) -> Recompute:
    """One policy for several: modules with the same saved ops are listed together, nests apart.

    >>> each = [Recompute(modules=(name,)) for name in ("a", "b", "b.c")]
    >>> str(joined(each))
    'checkpoint a, b; checkpoint b.c'
    """
    groups: list[Recompute] = []
    for policy in policies:
        for k, group in enumerate(groups):
            nested = any(_nested(x, y) for x in policy.modules for y in group.modules)
            if group.save == policy.save and not nested:
                groups[k] = replace(group, modules=(*group.modules, *policy.modules))
                break
        else:
            groups.append(policy)
    return replace(groups[0], also=tuple(groups[1:])) if groups else Recompute()


def _nested(x: str, y: str) -> bool:
    return f"{x}.".startswith(f"{y}.") or f"{y}.".startswith(f"{x}.")


class PartTables:
    """The parts of a step, and what is known of their options.

    Args:
        run: runs a step under a policy, with its calls noted.
        prices: cost and workspace of each op of a step.
        plain: the step without recomputation, with its calls noted.

    Attributes:
        parts: the outermost ones, in the order of their calls.
        plain: the plain step.
        effects: for parts that are alike: option → what it changes.
    """

    def __init__(
        self,
        run: Callable[[Recompute], EagerStep],
        prices: Callable[[EagerStep], Mapping[Hashable, tuple[float, int]]],
        plain: EagerStep,
    ) -> None:
        self._run, self._prices = run, prices
        self.parts, self._smallest = _parts(plain)
        self.plain = self._windows(plain)
        self.effects: dict[int, dict[Again, Effect]] = {}
        self._outputs: dict[int, list[_Output]] = {}

    def fill(self, *, saves: bool) -> None:
        """Try each part as a whole; predict what saved outputs change, if outputs may be saved."""
        kinds = {part.alike: part for part in _all(self.parts)}
        left = {alike: [Again(), Again(inner=True)][: 1 + bool(p.parts)] for alike, p in kinds.items()}
        while left:
            tried = [(part, left[part.alike].pop(0)) for part in _first_of(self.parts, left)]
            left = {alike: options for alike, options in left.items() if options}
            try:
                self.learn(tried)
            except UnsupportedModelError:
                for each in tried if len(tried) > 1 else []:
                    with suppress(UnsupportedModelError):
                        self.learn([each])
        if saves:
            self._predict_saving()

    def _predict_saving(self) -> None:
        most = _SHARE_OF_SAVING * sum(part.held for part in self.parts)
        for alike in {part.alike for part in _outermost(self.parts, most)}:
            if effect := self.effects.get(alike, {}).get(Again()):
                self.effects[alike] |= _saving(effect, self._outputs[alike])

    def learn(self, options: Sequence[tuple[Part, Again]]) -> EagerStep:
        """Run a step under some options, and note what they change."""
        step = self._run(joined([p for part, option in options for p in part.policies(option)]))
        prices, effect = self._prices(step), self._windows(step) - self.plain
        costs: dict[str, float] = {}
        for op in step.ran:
            if op.again:
                costs[op.around] = costs.get(op.around, 0.0) + prices[op.key][0]
        for part, option in options:
            inside = (cost for path, cost in costs.items() if f"{path}.".startswith(f"{part.path}."))
            self.effects.setdefault(part.alike, {})[option] = effect(part, sum(inside))
            if option == Again():
                self._outputs[part.alike] = _outputs(step, part.path, prices)
        return step

    def forget(self, options: Sequence[tuple[Part, Again]]) -> None:
        """Leave out those of some options that save outputs."""
        for part, option in options:
            if option.save:
                self.effects[part.alike].pop(option, None)

    def _windows(self, step: EagerStep) -> Windows:
        prices = self._prices(step)
        peaks = [op.live + prices[op.key][1] for op in step.ran]
        begins, backs = self._times(step)
        made = _kept(step)

        def peak(start: int, stop: int) -> float:
            return max(peaks[start:stop], default=-math.inf)

        return Windows(
            at=tuple(sum(size for before, size in made if before < begin) for begin in begins),
            forward=tuple(peak(a, b) for a, b in pairwise(begins)),
            backward=tuple(peak(b, a) for a, b in pairwise([len(peaks), *backs])),
            beside=max(peak(0, begins[0]), peak(begins[-1], min(backs, default=len(peaks)))),
        )

    def _times(self, step: EagerStep) -> tuple[list[int], list[int]]:
        """Where each smallest part begins, and the last one ends; where the backward pass of each begins."""
        calls, end = {call.path: call for call in step.calls}, len(step.ran)
        begins = [min(calls[path].begin for path in first) for first, _ in self._smallest]
        ends = (calls[path].end for _, last in self._smallest[-1:] for path in last)
        begins.append(max(ends, default=0))
        backs: list[int] = []
        for _, last in self._smallest:
            known = (calls[path].back for path in last)
            backs.append(min([end, *backs[-1:], *(back for back in known if back is not None)]))
        return begins, backs


def _first_of(parts: Sequence[Part], wanted: Mapping[int, Sequence[Again]]) -> list[Part]:
    """Parts of which none is in another, for the options that are wanted, the outermost first."""
    count = {alike: len(options) for alike, options in wanted.items()}
    found: list[Part] = []

    def choose(parts: Sequence[Part]) -> None:
        for part in parts:
            if count.get(part.alike, 0) > 0:
                count[part.alike] -= 1
                found.append(part)
            else:
                choose(part.parts)

    choose(parts)
    return found


def _parts(plain: EagerStep) -> tuple[tuple[Part, ...], list[tuple[list[str], list[str]]]]:
    """The parts of a step; and of each smallest one the paths of those that begin, and that end with it."""
    lives = [_held_before(plain), *(op.live for op in plain.ran)]
    total = lives[_turn(plain)] - lives[0]
    kinds: dict[tuple[Hashable, ...], int] = {}
    smallest: list[tuple[list[str], list[str]]] = []

    def wanted(calls: Sequence[_Nest]) -> list[_Nest]:
        """Without those that hold too much or too little."""
        found: list[_Nest] = []
        for nest in calls:
            held, inner = lives[nest.call.end] - lives[nest.call.begin], wanted(nest.inner)
            if held > _SHARE_OF_WHOLE * total and inner:
                found += inner
            elif held >= _SHARE_OF_NOTHING * total:
                same = len(inner) == 1 and inner[0].span == nest.span
                found.append(_Nest(nest.call, inner[0].inner if same else inner))
        return found

    def made(nest: _Nest) -> Part:
        (begin, end), first = nest.span, len(smallest)
        parts = tuple(made(each) for each in nest.inner)
        if not parts:
            smallest.append(([], []))
        smallest[first][0].append(nest.call.path)
        smallest[-1][1].append(nest.call.path)
        key = tuple(op.key for op in plain.ran[begin:end])
        return Part(
            path=nest.call.path,
            first=first,
            last=len(smallest) - 1,
            parts=parts,
            alike=kinds.setdefault(key, len(kinds)),
            held=lives[end] - lives[begin],
        )

    parts = tuple(made(nest) for nest in wanted(_nested_calls(plain.calls)))
    return parts, smallest


@dataclass(slots=True)
class _Nest:
    """A call of a module, and those within it."""

    call: Call
    inner: list[_Nest] = field(default_factory=list)

    @property
    def span(self) -> tuple[int, int]:
        return self.call.begin, self.call.end


def _nested_calls(calls: Sequence[Call]) -> list[_Nest]:
    """The outermost calls of the modules that are called once."""
    number = Counter(call.path for call in calls)
    top = _Nest(Call("", 0, sys.maxsize))
    around = [top]
    for call in calls:
        if number[call.path] == 1:
            while call.begin >= around[-1].call.end:
                around.pop()
            nest = _Nest(call)
            around[-1].inner.append(nest)
            around.append(nest)
    return top.inner


def _kept(step: EagerStep) -> list[tuple[int, int]]:
    """What lives between both passes: number of ops before it was made, and its bytes.

    More lives at the end of a part's forward pass, which Python's variables hold until they are set again.
    """
    turn = _turn(step)
    made: dict[int, tuple[int, int]] = {}
    for before, storage, size in step.changes:
        if before >= turn:
            break
        first = made[storage][0] if storage in made else before
        made[storage] = (first, size)
        if not size:
            del made[storage]
    return list(made.values())


def _turn(step: EagerStep) -> int:
    """The number of ops of the forward pass."""
    return next((k for k, op in enumerate(step.ran) if op.backward), len(step.ran))


def _held_before(step: EagerStep) -> int:
    return sum(size for before, _, size in step.changes if before < 0)


def _all(parts: Sequence[Part]) -> Iterator[Part]:
    for part in parts:
        yield part
        yield from _all(part.parts)


def _outermost(parts: Sequence[Part], most: float) -> Iterator[Part]:
    """The outermost parts that hold at most ``most`` bytes and are no stacks of parts that are alike."""
    for part in parts:
        is_stack = len({inner.alike for inner in part.parts}) < len(part.parts)
        if not part.parts or (part.held <= most and not is_stack):
            yield part
        else:
            yield from _outermost(part.parts, most)


class _Output(NamedTuple):
    """The output of an op's run in a call, in bytes, and the cost of the op."""

    op: str
    run: int
    size: int
    cost: float


def _outputs(step: EagerStep, path: str, prices: Mapping[Hashable, tuple[float, int]]) -> list[_Output]:
    """Outputs that a part may save, the most expensive per byte first."""
    call = next(call for call in step.calls if call.path == path)
    made: dict[int, int] = {}
    for before, _, size in step.changes:
        if call.begin <= before < call.end and before not in step.overwritten:
            made[before] = made.get(before, 0) + size
    again = (op for op in step.ran if op.again and op.around == path)
    worth = {(op.op, op.run): prices[op.key][0] for op in again}
    found = []
    for k, size in made.items():
        op, run = step.ran[k].op, step.ran[k].run
        cost = worth.get((op, run), 0.0)
        if size > 0 and cost > 0 and run is not None:
            found.append(_Output(op, run, size, cost))
    return sorted(found, key=lambda output: -output.cost / output.size)


def _saving(whole: Effect, outputs: Sequence[_Output]) -> dict[Again, Effect]:
    """What saved outputs change, as predicted: of the best ones per byte more and more.

    Peaks are those of the part that runs again as a whole, or higher if it holds more: a low estimate, which
    is corrected where it is believed.
    """
    size, cost = (sum(column) for column in ([x.size for x in outputs], [x.cost for x in outputs]))
    found: dict[Again, Effect] = {}
    runs: dict[str, set[int]] = {}
    held, left, passed = whole.held, whole.cost, 0
    for output in outputs:
        runs.setdefault(output.op, set()).add(output.run)
        held, left = held + output.size, left - output.cost
        step = int(_LEVELS / 2 * ((held - whole.held) / size + (whole.cost - left) / cost))
        if step > passed and held < 0:
            save = tuple(Save(op=op, which=frozenset(which)) for op, which in runs.items())
            found[Again(save=save)] = Effect(
                held=held, forward=max(whole.forward, held), backward=max(whole.backward, held), cost=left
            )
            passed = step
    return found

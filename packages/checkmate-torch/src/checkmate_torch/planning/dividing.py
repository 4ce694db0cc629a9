"""Decide which regions of a step run in pieces, and in how many: the cheapest schedule of all that are tried.

The step is decided without pieces first. Where that fits the budget and costs little more than no
recomputation at all, nothing is divided. Otherwise kinds of regions are taken in the order of their working
sets, the largest first: their number of pieces is doubled as long as the schedule becomes cheaper or, where
none fits the budget yet, the floor becomes lower. Each number is priced and solved for a short time, the best
one for the whole time limit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from checkmate import InfeasibleBudgetError, PlanError, Solution, floor, keep_all_peak
from checkmate.report import Pieces
from checkmate_torch.planning.divided import Divided, reason_for
from checkmate_torch.planning.steps.stages import PricedStep, Step
from checkmate_torch.tracing.pieces import Division, cut_graph, in_pieces, with_sums_apart
from checkmate_torch.tracing.regions import Region, find_regions

__all__ = ["decide_in_pieces", "lowest_in_pieces"]

_WORTH_IT = 0.02
"""Pieces must save at least this share of the step's cost, unless the budget needs them."""
_GOES_ON = 0.002
"""More pieces are tried while doubling their number saves at least this share of the cost of the step."""
_MOST_IN_VAIN = 2
"""After this number of numbers of pieces that are no better than none, more pieces are not tried."""
_MOST_PIECES = 64
_MOST_KINDS = 3
_ROOM = 4
"""Ops are cut if their working set is above this fraction of the room for tensors in the budget."""
_BRIEF, _BRIEF_S = 10, 0.5
"""Each number of pieces is solved for this fraction of the time limit, at least for ``_BRIEF_S`` seconds."""
_LOWER = 0.95
"""A floor counts as lower if it leaves less than this share of the room for tensors."""
_TRIED = "with ops in as many pieces as help"
_NO_HELP = "pieces of ops don't help"
_log = logging.getLogger(__name__)


def decide_in_pieces(kind: Step, step: PricedStep, *, throw: bool = True) -> tuple[PricedStep, Solution]:
    """The step to run, with some ops in pieces where that is better, and its best schedule in the budget.

    Args:
        kind: how the step is planned.
        step: without pieces.
        throw: False = if no schedule is found, return a solution without one instead of raising.

    Raises:
        InfeasibleBudgetError: if no schedule was found, also with pieces; it is of the division with the
            lowest floor that was tried.
        PlanError: if the setting ``split`` names an op that can't be cut.
    """
    if (asked := _as_asked(kind, step)) is not None:
        return _with_reason(asked, kind.decide(asked, throw=throw), "split= asks for them")
    solution = kind.decide(step, throw=False)
    budget = solution.problem.budget
    if budget <= step.graph.base_size or (solution.timeline is not None and solution.overhead < _WORTH_IT):
        return step, solution if solution.timeline is not None else _decided(kind, step, throw)
    search = _Search(_Whole.of(kind, step, budget), solution)
    search.run()
    if search.best is not None:
        better = kind.decide(search.best, throw=False)
        if _cost(better) < _cost(solution) * (1 - _WORTH_IT):
            return _with_reason(search.best, better, reason_for(solution, better))
    if solution.timeline is None:
        lowest = search.last_resort
        found = _decided(kind, lowest, throw)
        return _with_reason(lowest, found, reason_for(solution, found))
    return step, solution


def _as_asked(kind: Step, step: PricedStep) -> PricedStep | None:
    """The step as the setting ``split`` prescribes it; None = its pieces are to be found."""
    asked = kind.options.split
    if asked is False or not kind.may_be_divided(step):
        return step
    if not isinstance(asked, Mapping):
        return None
    whole = _Whole.of(kind, step, 0)
    return whole.priced(whole.named(asked))


def _decided(kind: Step, step: PricedStep, throw: bool) -> Solution:
    """The best schedule of a step; an error says that pieces were tried: its proof is for their graph."""
    try:
        return kind.decide(step, throw=throw)
    except InfeasibleBudgetError as error:
        is_hopeless = error.budget <= step.graph.base_size
        if step.divided is None and not is_hopeless:
            raise
        reason = "; ".join(filter(None, (error.reason, _NO_HELP if is_hopeless else _TRIED)))
        known = {"proved": error.proved and is_hopeless, "reason": reason}
        raise InfeasibleBudgetError(**vars(error) | known) from None


def _with_reason(step: PricedStep, solution: Solution, reason: str) -> tuple[PricedStep, Solution]:
    """A step in pieces with the reason, and its solution, which knows that ops are pieces."""
    if step.divided is None:
        return step, solution
    of = (None if node is None else node.meta.get("piece") for node in step.traced.nodes)
    pieces = Pieces(of=tuple(of), plain_cost=step.divided.plain_cost)
    return replace(step, divided=replace(step.divided, reason=reason)), replace(solution, pieces=pieces)


def lowest_in_pieces(kind: Step, step: PricedStep) -> PricedStep:
    """The step in pieces that have the lowest floor of all that are tried; the step if none lowers it.

    Nothing is solved: kinds of regions are taken in the order of their working sets, and each is cut into
    more and more pieces as long as the floor falls. If the setting ``split`` is a mapping, its pieces are
    taken.

    Args:
        kind: how the step is planned; its budget does not matter.
        step: without pieces.

    Raises:
        PlanError: if the setting ``split`` names an op that can't be cut.
    """
    if (asked := _as_asked(kind, step)) is not None:
        return asked
    whole = _Whole.of(kind, step, 0)
    base, chosen = step.graph.base_size, list[Division]()
    lowest = floor(step.graph).size
    for regions in whole.kinds()[:_MOST_KINDS]:
        before = chosen
        for more in _numbers(regions):
            least = whole.floor([*before, *more])
            if least - base >= _LOWER * (lowest - base):
                break
            lowest, chosen = least, [*before, *more]
    return whole.priced(chosen)


def _cost(solution: Solution) -> float:
    return math.inf if solution.timeline is None else solution.timeline.cost


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Whole:
    """A step without pieces, and its regions."""

    kind: Step
    step: PricedStep
    regions: Sequence[Region]

    @classmethod
    def of(cls, kind: Step, step: PricedStep, budget: int) -> _Whole:
        traced = kind.trace(with_sums_apart(step.traced.as_joint), step.captured)
        room = max(0, budget - traced.graph.base_size)
        return cls(kind=kind, step=step, regions=find_regions(traced, room // _ROOM))

    def kinds(self) -> list[list[Region]]:
        """Its regions, those that do the same together; the largest working sets first."""
        found: dict[object, list[Region]] = {}
        for region in self.regions:
            found.setdefault(region.kind, []).append(region)
        return [*found.values()]

    def named(self, counts: Mapping[str, int]) -> list[Division]:
        """The divisions that a user asks for, by names of ops."""
        found = []
        for name, count in counts.items():
            region = next((r for r in self.regions if any(name == n.name for n in r.ops)), None)
            if region is None:
                known = ", ".join(sorted(r.name for r in self.regions)) or "none"
                raise PlanError(f"split: op {name!r} can't be cut; ops that can: {known}")
            found += _divisions([region], count)
        return found

    def floor(self, divisions: Sequence[Division]) -> int:
        """The floor of the step in pieces in bytes, without workspaces."""
        return floor(cut_graph(divisions[0].region.traced.graph, divisions)[0]).size

    def priced(self, divisions: Sequence[Division]) -> PricedStep:
        """The step in pieces; what plain PyTorch needs does not change."""
        if not divisions:
            return self.step
        joint = in_pieces(divisions[0].region.traced, divisions)
        made = self.kind.price(joint, self.step.captured, None)
        now = self.step.peak_now
        return replace(
            made,
            plain_peak=self.step.plain_peak,
            peak_now=keep_all_peak(self.step.graph) if now is None else now,
            divided=Divided(divisions=tuple(divisions), plain_cost=self.step.graph.ideal_cost),
        )


def _divisions(regions: Sequence[Region], count: int) -> list[Division]:
    found = [Division(region, region.parts(count)) for region in regions]
    return [division for division in found if len(division.parts) > 1]


class _Search:
    """The numbers of pieces that were tried.

    Attributes:
        best: the step with the cheapest schedule that was found; None = none is better than no pieces.
    """

    def __init__(self, whole: _Whole, solution: Solution) -> None:
        """Start from the best schedule without pieces."""
        self.whole, self.budget, self.cost = whole, solution.problem.budget, _cost(solution)
        options = whole.kind.options
        seconds = min(options.time_limit, max(_BRIEF_S, options.time_limit / _BRIEF))
        self.brief = replace(whole.kind, options=replace(options, time_limit=seconds))
        self.best: PricedStep | None = None
        self.lowest, self.floor = list[Division](), floor(whole.step.graph).size

    @property
    def last_resort(self) -> PricedStep:
        """The step with the lowest floor."""
        return self.whole.priced(self.lowest)

    def run(self) -> None:
        """Try numbers of pieces for one kind of regions after the other."""
        ideal = self.whole.step.graph.ideal_cost
        chosen: list[Division] = []
        for regions in self.whole.kinds()[:_MOST_KINDS]:
            before, tries = chosen, _MOST_IN_VAIN
            for more in _numbers(regions):
                cost = self.cost
                if self._is_better([*before, *more]):
                    chosen = [*before, *more]
                    if self.best is not None and regions[0].changes:
                        break  # each number that is tried asks for longer lengths
                if self.cost < math.inf and not cost - self.cost >= _GOES_ON * ideal:
                    tries -= 1
                if not tries or (self.best is not None and tries < _MOST_IN_VAIN):
                    break
            if self.cost < ideal * (1 + _WORTH_IT):
                return

    def _is_better(self, divisions: list[Division]) -> bool:
        """Whether the cost is lower than before or, as long as nothing fits, the floor is."""
        lower = self.whole.floor(divisions)
        is_lower = lower < self.floor
        if is_lower:
            self.lowest, self.floor = divisions, lower
        if lower > self.budget:
            return is_lower and self.cost == math.inf
        step = self.whole.priced(divisions)
        solution = self.brief.decide(step, throw=False)
        cost = _cost(solution)
        if step.divided is not None:
            _log.info("%s: %r", "; ".join(step.divided.in_words()), solution)
        if cost < self.cost:
            self.best, self.cost = step, cost
            return True
        return is_lower and self.cost == math.inf


def _numbers(regions: Sequence[Region]) -> Iterator[list[Division]]:
    """Divisions of some regions into more and more pieces."""
    known = {1}
    for count in (2**k for k in range(1, _MOST_PIECES.bit_length())):
        divisions = _divisions(regions, count)
        if divisions and (n := len(divisions[0].parts)) not in known:
            known.add(n)
            yield divisions

"""What runs in pieces in a planned step, and why."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate import Solution, Status, floor
from checkmate.units import format_bytes
from checkmate_torch.memory.account import module_of
from checkmate_torch.tracing.pieces import Division
from checkmate_torch.tracing.regions import Region

__all__ = ["Divided", "reason_for"]

_MOST_MODULES = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divided:
    """The regions of a step that run in pieces, beside the step without pieces.

    Attributes:
        divisions: the regions, and the part of each piece.
        plain_cost: cost of the step without pieces and without recomputation, in the graph's unit.
        reason: why they run in pieces, in words; "" = they are only tried.
    """

    divisions: tuple[Division, ...]
    plain_cost: float
    reason: str = ""

    def in_words(self) -> list[str]:
        """A sentence for each kind of region, and one for the reason."""
        alike: dict[tuple[object, int], list[Region]] = {}
        for region, parts in self.divisions:
            alike.setdefault((region.kind, len(parts)), []).append(region)
        told = [_in_words(regions, count) for (_, count), regions in alike.items()]
        return [*told, *([f"why pieces: {self.reason}"] if self.reason else [])]


def _in_words(regions: list[Region], count: int) -> str:
    first, *others = regions
    found = dict.fromkeys(map(module_of, first.ops))
    modules = [m for m in found if m and not any(other.startswith(f"{m}.") for other in found)]
    place = f" (in {', '.join(modules[:_MOST_MODULES])})" if modules else ""
    more = f"; so are those of {len(others)} parts like it" if others else ""
    return (
        f"{first.rows:,} rows of {first.name} and the ops around it{place} are cut into {count} pieces{more}"
    )


def reason_for(whole: Solution, divided: Solution) -> str:
    """Why a step runs in pieces.

    Args:
        whole: the best answer without pieces, perhaps without a schedule.
        divided: the best answer with pieces, which has a schedule.
    """
    least, budget = floor(whole.problem.graph).size, whole.problem.budget
    if whole.timeline is not None:
        return f"the step costs {1 - divided.cost / whole.cost:.1%} less than the best schedule without them"
    if least > budget:
        return f"no schedule without them needs less than {format_bytes(least)}"
    if whole.status is Status.INFEASIBLE:
        return "no schedule without them is within the budget"
    return "no schedule without them was found within the budget"

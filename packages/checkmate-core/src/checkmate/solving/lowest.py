"""The schedules of least peak that this process knows: a budget named in an error can be met again.

A search that depends on time may end at a higher peak the next time. So the schedule of least peak is kept,
for each of the last graphs and each rule of order, and offered to solvers as ``Problem.start``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from checkmate.errors import InvalidScheduleError
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.simulate import simulate

__all__ = ["Lowest", "lowest_known", "remember_lowest"]

_MOST = 64


class Lowest:
    """The schedule that needs the fewest bytes, for each of the latest keys; used by several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[int, Schedule]] = OrderedDict()
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._known)

    def remember(self, key: Hashable, size: int, schedule: Schedule) -> Schedule:
        """Keep a schedule of ``size`` bytes if it needs fewer than the known one; return the kept one."""
        with self._lock:
            if key not in self._known or size < self._known[key][0]:
                self._known[key] = size, schedule
            self._known.move_to_end(key)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
            return self._known[key][1]

    def known(self, *keys: Hashable) -> Schedule | None:
        """The schedule of the fewest bytes that is known for one of the keys, or None."""
        with self._lock:
            found = [self._known[key] for key in keys if key in self._known]
        return min(found, key=lambda known: known[0])[1] if found else None


_lowest = Lowest()


def remember_lowest(graph: DFGraph, schedule: object, *, fixed_order: bool) -> None:
    """Keep a schedule if it is valid, follows the rule of order, and has a lower peak than the one known."""
    if not isinstance(schedule, Schedule) or (fixed_order and not schedule.keeps_base_order):
        return
    try:
        peak = simulate(graph, schedule).peak
    except InvalidScheduleError:
        return
    _lowest.remember((graph.digest, fixed_order), peak, schedule)


def lowest_known(graph: DFGraph, *, fixed_order: bool) -> Schedule | None:
    """The schedule of least peak that is known for this graph and this rule of order, or None."""
    if not _lowest:  # the usual case; a digest takes time
        return None
    orders = (True,) if fixed_order else (True, False)
    return _lowest.known(*((graph.digest, order) for order in orders))

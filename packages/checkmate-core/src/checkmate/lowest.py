"""The schedules of least peak that this process knows: a budget named in an error can be met again.

A search for the least peak that depends on time may reach less the next time. So the best result so far is
kept, for each of the last graphs and each rule of order, and offered to solvers as ``Problem.start``.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from checkmate.errors import InvalidScheduleError
from checkmate.graph import DFGraph
from checkmate.schedule import Schedule
from checkmate.simulate import simulate

__all__ = ["lowest_known", "remember_lowest"]

_MOST = 64
_known: OrderedDict[tuple[str, bool], tuple[int, Schedule]] = OrderedDict()
_lock = Lock()


def remember_lowest(graph: DFGraph, schedule: object, *, fixed_order: bool) -> None:
    """Keep a schedule if it is valid and has a lower peak than the one known.

    Args:
        graph: the graph.
        schedule: the schedule; any other object is ignored.
        fixed_order: True = first runs must keep the base order; other schedules are ignored.
    """
    if not isinstance(schedule, Schedule) or (fixed_order and not schedule.keeps_base_order):
        return
    try:
        peak = simulate(graph, schedule).peak
    except InvalidScheduleError:
        return
    key = graph.digest, fixed_order
    with _lock:
        if key not in _known or peak < _known[key][0]:
            _known[key] = peak, schedule
        _known.move_to_end(key)
        while len(_known) > _MOST:
            _known.popitem(last=False)


def lowest_known(graph: DFGraph, *, fixed_order: bool) -> Schedule | None:
    """The schedule of least peak that is known for this graph and this rule of order, or None."""
    orders = (True,) if fixed_order else (True, False)
    if not _known:  # the usual case; a digest takes time
        return None
    with _lock:
        found = [_known[key] for order in orders if (key := (graph.digest, order)) in _known]
    return min(found, key=lambda known: known[0])[1] if found else None

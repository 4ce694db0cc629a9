"""The schedules of least peak that this process has met: a budget that it has named can be met again.

Where a search for the least peak depends on time, the next one may reach less. So the best result so far is
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
    """Keep a schedule if it is valid and no other is known with as low a peak.

    Args:
        graph: the graph.
        schedule: the schedule; what is none is ignored.
        fixed_order: whether first runs must keep the base order; what doesn't keep it is ignored then.
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
    if not _known:  # most often; a digest takes time
        return None
    with _lock:
        found = [_known[key] for order in orders if (key := (graph.digest, order)) in _known]
    return min(found, key=lambda known: known[0])[1] if found else None

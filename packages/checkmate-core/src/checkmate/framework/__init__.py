"""The parts that the packages for PyTorch and TensorFlow share: settings, prices, releases, decisions.

A framework package traces a step, asks :func:`price` for the cost of each op and :func:`decide` for the
schedule, and runs it. A third framework starts from the same parts.
"""

from checkmate.framework.decide import (
    HEADROOM,
    available_memory,
    decide,
    in_bytes,
    schedule_of,
    unknown_memory,
)
from checkmate.framework.exported import proved_overhead, verdict
from checkmate.framework.following import differences, late_frees
from checkmate.framework.options import AUTO, Options, Settings, TracingSettings
from checkmate.framework.pricing import Prices, by_bytes, measured_ops, price
from checkmate.framework.releases import Releases, UnsupportedReleaseError
from checkmate.framework.step import ProgramError, TracedStep, named_factory
from checkmate.solving.lowest import Lowest

__all__ = [
    "AUTO",
    "HEADROOM",
    "Lowest",
    "Options",
    "Prices",
    "ProgramError",
    "Releases",
    "Settings",
    "TracedStep",
    "TracingSettings",
    "UnsupportedReleaseError",
    "available_memory",
    "by_bytes",
    "decide",
    "differences",
    "in_bytes",
    "late_frees",
    "measured_ops",
    "named_factory",
    "price",
    "proved_overhead",
    "schedule_of",
    "unknown_memory",
    "verdict",
]

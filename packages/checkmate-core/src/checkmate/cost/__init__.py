"""Cost models: functions from a graph to the same graph with other costs, in another unit.

Each is a frozen value with one method, ``annotate``, which changes only the costs of the ops and the graph's
``cost_unit``. So a schedule of one graph is also a schedule of the other. The framework packages measure ops
themselves, and store the measurements in :class:`MeasuredOps`.
"""

from checkmate.cost.devices import DEVICES, Device, device_in_table, device_named
from checkmate.cost.measured import MeasuredOps, OpProfile, processor
from checkmate.cost.pricing import TableCost, UnitCost, with_costs
from checkmate.cost.roofline import Roofline, in_formats, measured_roofline

__all__ = [
    "DEVICES",
    "Device",
    "MeasuredOps",
    "OpProfile",
    "Roofline",
    "TableCost",
    "UnitCost",
    "device_in_table",
    "device_named",
    "in_formats",
    "measured_roofline",
    "processor",
    "with_costs",
]

"""Pictures, reports and traces of judged schedules; only pictures as files need an extra, matplotlib."""

from checkmate.report.dot import graph_dot
from checkmate.report.html import html_report
from checkmate.report.perfetto import perfetto_trace
from checkmate.report.plot import plot_memory
from checkmate.report.plot_schedule import plot_frontier, plot_plan, plot_timeline

__all__ = [
    "graph_dot",
    "html_report",
    "perfetto_trace",
    "plot_frontier",
    "plot_memory",
    "plot_plan",
    "plot_timeline",
]

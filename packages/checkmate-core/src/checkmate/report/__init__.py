"""Pictures, reports, accounts and traces of judged schedules; picture files need an extra."""

from checkmate.report.account import Account, Kind
from checkmate.report.dot import graph_dot
from checkmate.report.explanation import Explanation, Recomputed, explain
from checkmate.report.has_plans import HasPlans, Measured, PlanLike
from checkmate.report.html import html_report
from checkmate.report.peak import PeakReport, peak_report
from checkmate.report.perfetto import perfetto_trace
from checkmate.report.plot import blank_figure, plot_memory, save_figure
from checkmate.report.plot_schedule import plot_frontier, plot_plan, plot_timeline

__all__ = [
    "Account",
    "Explanation",
    "HasPlans",
    "Kind",
    "Measured",
    "PeakReport",
    "PlanLike",
    "Recomputed",
    "blank_figure",
    "explain",
    "graph_dot",
    "html_report",
    "peak_report",
    "perfetto_trace",
    "plot_frontier",
    "plot_memory",
    "plot_plan",
    "plot_timeline",
    "save_figure",
]

"""Pictures, reports, accounts and traces of judged schedules; picture files need an extra."""

from checkmate.problem.explanation import Explanation, Recomputed
from checkmate.problem.pieces import WHOLE, PieceOf, Pieces
from checkmate.report.account import Account, Kind
from checkmate.report.dot import graph_dot
from checkmate.report.html import html_report
from checkmate.report.perfetto import perfetto_trace
from checkmate.report.plans import HasPlans, Measured, PeakReport, PlanLike, explain, peak_of, peak_report
from checkmate.report.plot import (
    blank_figure,
    plot_frontier,
    plot_memory,
    plot_plan,
    plot_timeline,
    save_figure,
)

__all__ = [
    "WHOLE",
    "Account",
    "Explanation",
    "HasPlans",
    "Kind",
    "Measured",
    "PeakReport",
    "PieceOf",
    "Pieces",
    "PlanLike",
    "Recomputed",
    "blank_figure",
    "explain",
    "graph_dot",
    "html_report",
    "peak_of",
    "peak_report",
    "perfetto_trace",
    "plot_frontier",
    "plot_memory",
    "plot_plan",
    "plot_timeline",
    "save_figure",
]

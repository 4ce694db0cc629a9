"""Analyses of a graph, without a solver: floors, lifetimes, articulation points, and writes in place."""

from checkmate.analysis.articulation import articulation_points
from checkmate.analysis.floors import Floor, first_run_sets, floor, needed_ops, working_sets
from checkmate.analysis.lifetimes import Liveness, liveness
from checkmate.analysis.overwrites import in_vain, late_reads, sequence_to_run, with_writes_settled

__all__ = [
    "Floor",
    "Liveness",
    "articulation_points",
    "first_run_sets",
    "floor",
    "in_vain",
    "late_reads",
    "liveness",
    "needed_ops",
    "sequence_to_run",
    "with_writes_settled",
    "working_sets",
]

"""What a graph alone tells, before any solver."""

from checkmate.analysis.articulation import articulation_points
from checkmate.analysis.floors import Floor, floor, needed_ops, working_sets

__all__ = ["Floor", "articulation_points", "floor", "needed_ops", "working_sets"]

"""What a graph alone tells, before any solver."""

from checkmate.analysis.floors import Floor, floor, needed_ops, working_sets

__all__ = ["Floor", "floor", "needed_ops", "working_sets"]

"""Retention intervals: each tensor is held for a few stretches of time, and CP-SAT finds which."""

from checkmate_solvers.literature.retention.solver import RetentionIntervals

__all__ = ["RetentionIntervals"]

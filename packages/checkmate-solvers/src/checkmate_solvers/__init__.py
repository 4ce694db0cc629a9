"""Checkmate for solvers."""

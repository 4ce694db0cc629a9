"""Retention intervals: each tensor is held for a few stretches of time, and CP-SAT finds which."""

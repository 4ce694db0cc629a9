"""Moments of a schedule: bounds and schedules from the tensors resident at a few of them."""

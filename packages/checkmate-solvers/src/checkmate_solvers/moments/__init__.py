"""Moments of a schedule: bounds and schedules from which tensors are resident at a few of them."""

"""Moments of a schedule: bounds and schedules from what is resident at a few of them."""

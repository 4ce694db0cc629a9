"""Local search over sequences of ops with repeats, in C."""

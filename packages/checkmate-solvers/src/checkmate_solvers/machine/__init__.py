"""Local search over sequences of ops with repeats, as machine code."""

"""Local search over sequences of ops with repeats; nothing here is imported until a solver is loaded."""

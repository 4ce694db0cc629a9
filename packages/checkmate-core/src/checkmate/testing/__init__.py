"""For tests of plugins, and our own: :mod:`checkmate.testing.strategies` (needs hypothesis)."""

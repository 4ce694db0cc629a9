"""The built-in commands of ``checkmate``, and what only they use."""

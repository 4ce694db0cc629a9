"""Property tests: the same examples in every run, and no deadlines, so that a slow machine fails nothing."""

from hypothesis import settings

settings.register_profile("checkmate", derandomize=True, deadline=None)
settings.load_profile("checkmate")

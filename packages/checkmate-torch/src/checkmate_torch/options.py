"""The settings of the entry points, under the name that their module had before 0.2."""

from checkmate_torch.planning.options import *  # noqa: F403

"""The settings of the entry points, where their names were before 0.2: see :mod:`checkmate_torch.planning.options`."""

from checkmate_torch.planning.options import *  # noqa: F403

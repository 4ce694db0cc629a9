"""The name before 0.2 of the module :mod:`checkmate_torch.planning.options`."""

from checkmate_torch.planning.options import *  # noqa: F403

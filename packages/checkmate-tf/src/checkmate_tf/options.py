"""The settings of the entry points, where their names were before 0.2: see :mod:`checkmate_tf.planning.options`."""

from checkmate_tf.planning.options import *  # noqa: F403

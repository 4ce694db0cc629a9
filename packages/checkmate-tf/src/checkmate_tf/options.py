"""The settings under their name before 0.2; they are in :mod:`checkmate_tf.planning.options`."""

from checkmate_tf.planning.options import *  # noqa: F403

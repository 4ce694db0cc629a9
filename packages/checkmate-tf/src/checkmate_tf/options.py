"""The old import path of the settings, before 0.2; now :mod:`checkmate_tf.planning.options`."""

from checkmate_tf.planning.options import *  # noqa: F403

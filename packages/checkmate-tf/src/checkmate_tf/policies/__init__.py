"""Keras' own rematerialization, judged and chosen: what others recompute."""

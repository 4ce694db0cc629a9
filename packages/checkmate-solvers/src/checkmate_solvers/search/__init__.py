"""The state of one solve: what is known so far, and the time that is left."""

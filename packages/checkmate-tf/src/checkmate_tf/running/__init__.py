"""A schedule as code: a program of op copies, and the TensorFlow function that runs it."""

"""Facts about single ops of TensorFlow: shared storage, branches and loops, devices."""

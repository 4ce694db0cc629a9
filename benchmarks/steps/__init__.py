"""Real steps, measured: peak of live bytes and wall time of each way to save memory, in a fresh process each.

``torch_step`` (forward, loss, backward) and ``torch_whole_step`` (with the optimizer) run PyTorch,
``tf_step`` Keras networks in TensorFlow. Each has a ``measure`` that answers one task in this process;
``process.measured`` calls it from another process, which need not have the framework.
"""

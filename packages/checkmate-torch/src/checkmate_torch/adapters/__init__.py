"""The plugin interfaces of core, for PyTorch: frontend, executor, trials of the conformance kit."""

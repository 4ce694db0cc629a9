"""The plugin interfaces of core, for TensorFlow: frontend, executor, and trials of the conformance kit."""

"""The plugin interfaces of core, for TensorFlow: executor, trials of the conformance kit."""

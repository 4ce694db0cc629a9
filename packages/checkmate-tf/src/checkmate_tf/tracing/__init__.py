"""A step as a graph: TensorFlow's ops in groups, and the DFGraph that is solved."""

"""A function as TensorFlow sees it: its graph, arguments, variables and loss."""

"""Several processes: ranks that agree on one plan; wrappers that change the model."""

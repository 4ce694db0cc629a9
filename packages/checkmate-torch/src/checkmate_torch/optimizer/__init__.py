"""The user's optimizer within the step: updates in the graph, which of them may run alone, its state."""

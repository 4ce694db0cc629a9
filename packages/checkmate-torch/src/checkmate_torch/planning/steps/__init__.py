"""The two kinds of steps, one that the loop of the user runs and one with its updates, and their stages."""

"""What is asked and answered: a graph within a budget, the solution, the time that is left."""

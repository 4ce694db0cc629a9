"""A question (graph, budget, time limit), its answer, and what the answer's schedule does over time."""

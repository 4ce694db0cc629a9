"""What others recompute: their policies as values, judged by running them on fake tensors, and exported."""

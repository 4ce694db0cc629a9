"""Facts about single ops of PyTorch: which may be recomputed, write in place, share storage."""

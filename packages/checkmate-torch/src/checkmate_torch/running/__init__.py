"""A schedule as code: forward and backward graphs that PyTorch runs, fused kernels among them."""

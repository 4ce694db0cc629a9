"""Programs in stages, over two matrices: R, the computes of a stage; S, the tensors retained into it."""

"""What the kernels of several operations share, in Triton."""

"""The kernels of ``attention``, in Triton."""

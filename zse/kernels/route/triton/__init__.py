"""The kernels of ``route``, in Triton."""

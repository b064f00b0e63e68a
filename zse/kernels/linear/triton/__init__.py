"""The kernels of ``linear``, in Triton."""

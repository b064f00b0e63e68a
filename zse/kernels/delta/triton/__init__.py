"""The kernels of ``delta``, in Triton."""

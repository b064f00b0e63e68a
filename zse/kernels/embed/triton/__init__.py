"""The kernels of ``embed``, in Triton."""

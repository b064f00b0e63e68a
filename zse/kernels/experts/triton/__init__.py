"""The kernels of ``experts``, in Triton."""

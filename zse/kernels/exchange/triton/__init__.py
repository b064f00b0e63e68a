"""The kernels of ``exchange``, in Triton."""

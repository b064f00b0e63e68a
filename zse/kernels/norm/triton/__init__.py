"""The kernels of ``norm``, in Triton."""

"""The kernels of ``rope_store``, in Triton."""

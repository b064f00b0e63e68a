"""The kernels of ``gate_up``, in Triton."""

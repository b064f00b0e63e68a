"""The kernel of ``join``, in Triton."""

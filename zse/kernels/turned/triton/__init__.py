"""The kernel of ``pool``, in Triton."""

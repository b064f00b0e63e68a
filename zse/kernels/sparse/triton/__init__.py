"""The kernel of ``sparse``, in Triton, and its launch by torch."""

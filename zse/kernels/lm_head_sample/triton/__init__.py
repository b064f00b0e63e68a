"""The kernels of ``lm_head_sample``, in Triton."""

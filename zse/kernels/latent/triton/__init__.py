"""The kernels of ``latent``, in Triton."""

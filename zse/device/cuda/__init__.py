"""The CUDA driver by ctypes: one GPU, its memory, streams, kernels and graphs.

Imports only the standard library. ``gpu.Gpu.open`` opens a GPU; everything it hands out is given
back by its own ``free`` or ``destroy``, or by ``Gpu.close``.
"""

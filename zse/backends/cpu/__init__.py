"""The CPU backend: a model is recorded once, each step is one call of the kernels' library.

No torch, no numpy: weights are read where they lie in the mapped file, keys and values lie in
memory that becomes resident as sequences reach it, and Python fills a step's arrays.
"""

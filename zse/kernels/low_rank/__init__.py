"""Adapters of low rank: what is added to a product for the rows of sequences that use one.

``outputs[:, first : first + rows] += scale * (inputs @ down^T) @ up^T``, in float32; ``down`` is
[rank, columns], ``up`` [rows, rank]. A row's result depends on that row alone.
"""

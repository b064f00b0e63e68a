"""Where the matrix of an expert lies."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Matrices(NamedTuple):
    """Matrices [N, K] of all experts, one after the other, and that of a shared expert."""

    weights: tl.tensor
    """Address of [experts, N, K] as the scheme stores it."""
    scales: tl.tensor
    """Address of what the scheme has beside it: of each group, or of each row."""
    bias: tl.tensor
    """Address of float32 [experts, N]."""
    shared_weights: tl.tensor
    """Elements from ``weights`` to the shared expert's, int64."""
    shared_scales: tl.tensor
    """Elements from ``scales`` to the shared expert's, int64."""
    experts: tl.tensor
    """How many are stacked; the shared expert has this number."""
    N: tl.tensor
    has_bias: tl.tensor


@triton.jit
def matrix_of(matrices, expert, row_elements, row_scales):
    """Return the addresses of one expert's matrix and of its scales.

    Args:
        matrices: ``Matrices``.
        expert: Its number.
        row_elements: Elements of a row of the matrix.
        row_scales: Elements of scales that a row has.
    """
    first_row = expert.to(tl.int64) * matrices.N
    is_shared = expert == matrices.experts
    weights = tl.where(is_shared, matrices.shared_weights, first_row * row_elements)
    scales = tl.where(is_shared, matrices.shared_scales, first_row * row_scales)
    return matrices.weights + weights, matrices.scales + scales


@triton.jit
def bias_of(matrices, expert, n, first):
    """Return the bias of an expert's rows in the shape of ``n``.

    Zeros for the shared expert, and where this is not the ``first`` of some splits.
    """
    wanted = tl.where((expert < matrices.experts) & first, matrices.has_bias, 0)
    exists = (n < matrices.N) & (n * 0 + wanted > 0)  # a tile: the interpreter's masks need one
    return tl.load(matrices.bias + expert.to(tl.int64) * matrices.N + n, mask=exists, other=0.0)

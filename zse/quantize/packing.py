"""Codes of four bits and fewer in bytes, in the order that the kernels read.

A group of G codes takes G/2 bytes: byte b holds code b in its low nibble and code G/2 + b in its
high nibble, so that one mask yields two contiguous runs (SPEC.md, "INT4").
"""

from __future__ import annotations

import torch

from zse.format.few_bits import LOW_BITS, PIECE_WORDS, THIRD_BITS


def pack_int4(codes: torch.Tensor, group_size: int) -> torch.Tensor:
    """Pack codes [num_rows, K] uint8, each 0 to 15, into [num_rows, K/2] uint8.

    The inverse is ``as_torch.unpack_nibbles``.
    """
    num_rows, columns = codes.shape
    halves = codes.view(num_rows, columns // group_size, 2, group_size // 2)
    packed = halves[:, :, 0] | (halves[:, :, 1] << 4)  # [num_rows, num_groups, group_size / 2]
    return packed.reshape(num_rows, columns // 2)


def narrow_codes(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return four-bit packed codes [num_rows, K / 2], each below 2 ** bits, in fewer bits.

    The inverse is ``as_torch.widen_codes``; the result is uint8 [num_rows, K * bits / 8].
    """
    if bits == PIECE_WORDS:
        return packed
    rows = packed.shape[0]
    words = packed.contiguous().view(torch.int32).view(rows, -1, PIECE_WORDS)
    found = torch.zeros(*words.shape[:2], bits, dtype=torch.int32, device=packed.device)
    for index in range(PIECE_WORDS):
        found[:, :, index // 2] |= (words[:, :, index] & LOW_BITS) << (index % 2 * 2)
        if bits > 2:
            found[:, :, 2] |= ((words[:, :, index] >> 2) & THIRD_BITS) << index
    return found.view(rows, -1).view(torch.uint8)


def divided(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """Return the quotients, correctly rounded wherever ``values`` lie.

    By a plain number a GPU does not divide: torch multiplies by its reciprocal there.
    """
    return values / torch.tensor(divisor, dtype=values.dtype, device=values.device)


def tree_sum_(values: torch.Tensor) -> torch.Tensor:
    """Sum [2**n, num_groups] over the first dimension by halving, in place.

    The order of additions is fixed, whatever the number of threads; ``values`` is used up.
    """
    size = values.shape[0]
    while size > 1:
        size //= 2
        values[:size].add_(values[size : 2 * size])
    return values[0]

"""Reference of ``linear``: dequantize, multiply in float64."""

from __future__ import annotations

import torch

from zse.format.mxfp4 import EXPONENT_BIAS, MXFP4_CODES, MXFP4_GROUP
from zse.format.nl4 import NL4_CODES, SCALE_BIAS
from zse.format.schemes import PACKED_COLUMNS

TOLERANCE = 1e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""
QUANTIZED_TOLERANCE = 2e-3
"""The same with int8 activations, held against the values that the kernel multiplies: for NF4
those are the whole numbers of ``tables.NF4_INT8``."""


def unpack_nibbles(qweight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return codes 0..15, uint8 [N, K], of packed uint8 [N, K / 2]."""
    groups = qweight.view(qweight.shape[0], -1, group_size // 2)
    return torch.cat((groups & 15, groups >> 4), -1).flatten(-2)


def widen_codes(qweight: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes of 2 or 3 bits, uint8 [N, K * bits / 8], as four-bit ones are packed."""
    rows = qweight.shape[0]
    pieces = qweight.view(rows, -1, bits, 4).int()  # 32 columns: words of four bytes
    words = [(pieces[:, :, index // 2] >> (index % 2 * 2)) & 0x33 for index in range(4)]
    if bits == 3:
        thirds = [((pieces[:, :, 2] >> index) & 0x11) << 2 for index in range(4)]
        words = [word | third for word, third in zip(words, thirds, strict=True)]
    return torch.stack(words, 2).to(torch.uint8).view(rows, -1)


def dequantize_int4(
    qweight: torch.Tensor, scale_zero: torch.Tensor, group_size: int
) -> torch.Tensor:
    """Return float64 [N, K] of uint8 [N, K / 2] and int32 [N, K / group_size]."""
    pairs = scale_zero.view(torch.float16).view(*scale_zero.shape, 2).double()
    codes = unpack_nibbles(qweight, group_size).double()
    codes = codes.view(*scale_zero.shape, group_size)
    return (codes * pairs[..., :1] + pairs[..., 1:]).flatten(-2)


def dequantize_nf4(
    qweight: torch.Tensor, absmax: torch.Tensor, group_size: int, values: torch.Tensor
) -> torch.Tensor:
    """Return float64 [N, K] of uint8 [N, K / 2], float16 [N, K / group_size], 16 code values."""
    codes = unpack_nibbles(qweight, group_size).long()
    table = values.to(codes.device).double()
    return table[codes] * absmax.double().repeat_interleave(group_size, -1)


def dequantize_mxfp4(qweight: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Return float64 [N, K] of uint8 [N, K / 2] and uint8 [N, K / 32]."""
    codes = unpack_nibbles(qweight, MXFP4_GROUP).long()
    table = torch.tensor(MXFP4_CODES, dtype=torch.float64, device=codes.device)
    scale = torch.exp2(exponent.double() - EXPONENT_BIAS)
    return table[codes] * scale.repeat_interleave(MXFP4_GROUP, -1)


def dequantize_nl4(qweight: torch.Tensor, signed_scale: torch.Tensor) -> torch.Tensor:
    """Return float64 [N, K] of uint8 [N, K / 2] and uint8 [N, K / 32] or [N, K / 16]."""
    codes = unpack_nibbles(qweight, PACKED_COLUMNS).long()
    table = torch.tensor(NL4_CODES, dtype=torch.float64, device=codes.device)
    stored = signed_scale.long()
    magnitude = (1 + (stored & 7) / 8) * torch.exp2(((stored >> 3) & 15).double() - SCALE_BIAS)
    scale = torch.where(stored > 127, -magnitude, magnitude)
    return table[codes] * scale.repeat_interleave(codes.shape[1] // scale.shape[1], -1)


def dequantize_int8(qweight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return float64 [N, K] of int8 [N, K] and float32 [N]."""
    return qweight.double() * scale.double().unsqueeze(-1)


def linear(activations: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return float64 [M, N] of activations [M, K] and a dequantized matrix [N, K]."""
    return activations.double() @ matrix.double().T


def hadamard(size: int) -> torch.Tensor:
    """Return float64 [size, size] of signs whose rows are orthogonal; a power of two."""
    found = torch.ones(1, 1, dtype=torch.float64)
    while found.shape[0] < size:
        found = torch.cat((torch.cat((found, found), 1), torch.cat((found, -found), 1)), 0)
    return found


def turn_and_round(rows: torch.Tensor) -> torch.Tensor:
    """Return float64 [N, K]: each 128 columns turned by ``hadamard``, rounded to int8 by its row.

    The largest number of a row gets code 127; halves are rounded to even.
    """
    turned = (rows.double().view(*rows.shape[:-1], -1, 128) @ hadamard(128)).flatten(-2)
    scales = turned.abs().amax(-1, keepdim=True) / 127.0
    return torch.round(turned / torch.where(scales > 0, scales, 1.0)) * scales


def turned_product(activations: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return float64 [M, N]: the product of both sides turned and rounded to int8."""
    return turn_and_round(activations) @ turn_and_round(matrix).T / 128.0

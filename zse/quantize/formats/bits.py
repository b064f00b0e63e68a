"""Codes of a few bits in int32, one behind the other: the first in the lowest bits.

GPTQ and compressed-tensors both pack so. Where 32 is no multiple of the bits, a code may begin in
one int32 and end in the next; 32 codes always fill as many int32 as they have bits.
"""

from __future__ import annotations

import torch

INT_BITS = 32


def ints_for(count: int, bits: int) -> int:
    """Return how many int32 so many codes take; the last one may be filled up with zeros."""
    return -(-count * bits // INT_BITS)


def unpack_bits(ints: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return codes, int32 [rows, count], of int32 [rows, ``ints_for(count, bits)``]."""
    mask = (1 << bits) - 1
    if INT_BITS % bits == 0:
        shifts = torch.arange(0, INT_BITS, bits, dtype=torch.int32)
        return ((ints.unsqueeze(2) >> shifts) & mask).flatten(1)[:, :count]
    missing = -ints.shape[1] % bits
    words = torch.nn.functional.pad(ints, (0, missing)).long() & 0xFFFFFFFF
    words = words.view(ints.shape[0], -1, bits)
    codes = []
    for first_bit in range(0, INT_BITS * bits, bits):
        word, shift = divmod(first_bit, INT_BITS)
        code = words[:, :, word] >> shift
        if shift + bits > INT_BITS:
            code = code | words[:, :, word + 1] << (INT_BITS - shift)
        codes.append((code & mask).int())
    return torch.stack(codes, dim=2).flatten(1)[:, :count]


def pack_bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return int32 [rows, ``ints_for(count, bits)``] of codes [rows, count]; 32 / bits is whole."""
    each = INT_BITS // bits
    filled = torch.nn.functional.pad(codes.long(), (0, -codes.shape[1] % each))
    shifts = torch.arange(0, INT_BITS, bits)
    words = (filled.view(codes.shape[0], -1, each) << shifts).sum(2)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()

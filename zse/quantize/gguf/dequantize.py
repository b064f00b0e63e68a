"""Numbers of a GGUF file as float32: one function for each type, over blocks at once.

A block is a row of bytes; what lies in it is that of ``ggml-common.h`` (MIT, the ggml authors),
which the names of the parts follow: ``d`` the scale (float16), ``m`` the smallest, ``qs`` the low
bits, ``qh`` the high ones. The types whose codes stand for rows of long tables (IQ1 to IQ3) are
computed by the package ``gguf``, which has the tables.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from zse.errors import UnsupportedModelError, needing
from zse.format.mxfp4 import MXFP4_CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zse.quantize.gguf.types import BlockType

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_PLAIN = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip


def dequantize(data: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """Return the numbers of whole blocks as float32, in a row.

    Args:
        data: The blocks' bytes, uint8.
        kind: Their type.

    Raises:
        MissingDependencyError: The type needs the package ``gguf``, which is absent.
        UnsupportedModelError: That does not know the type either.
    """
    if kind.name in _PLAIN:
        return data.view(_PLAIN[kind.name]).float()
    blocks = data.view(-1, kind.size_bytes)
    compute = _BLOCKS.get(kind.name)
    if compute is None:
        return _by_package(blocks, kind)
    return compute(blocks).reshape(-1)


def _halves(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Return a float16 of each block as float32, [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Return the low halves of bytes, then the high ones: [..., n] -> [..., 2n]."""
    return torch.cat((codes & 0xF, codes >> 4), -1)


def _bits(codes: torch.Tensor, shifts: tuple[int, ...], mask: int) -> torch.Tensor:
    """Return fields of bytes, a shift after the other: [..., n] -> [..., shifts, n]."""
    return torch.stack([(codes >> shift) & mask for shift in shifts], -2)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _halves(blocks, 2)


def _fifth_bits(blocks: torch.Tensor) -> torch.Tensor:
    """Return bit i of 32 bits as number i: uint8 [blocks, 4] -> [blocks, 32]."""
    bits = torch.stack([(blocks >> shift) & 1 for shift in range(8)], -1)
    return bits.reshape(len(blocks), 32)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 6:]) | (_fifth_bits(blocks[:, 2:6]) << 4)
    return _halves(blocks, 0) * (codes.float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 8:]) | (_fifth_bits(blocks[:, 4:8]) << 4)
    return _halves(blocks, 0) * codes.float() + _halves(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _halves(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _q8_1(blocks: torch.Tensor) -> torch.Tensor:
    return _halves(blocks, 0) * blocks[:, 4:].contiguous().view(torch.int8).float()


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, qs = blocks[:, :16], blocks[:, 16:80]
    codes = _bits(qs.view(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 16, 16).float()
    scale = _halves(blocks, 80) * (scales & 0xF).float()
    smallest = _halves(blocks, 82) * (scales >> 4).float()
    return scale[..., None] * codes - smallest[..., None]


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    hmask, qs, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    low = _nibbles(packed[:, :8])  # [blocks, 16]
    high = _bits(packed[:, 8:], (0, 2, 4, 6), 3).reshape(-1, 16)
    scales = (low | (high << 4)).float() - 32
    codes = _bits(qs.view(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 8, 32)
    is_high = _bits(hmask, tuple(range(8)), 1)  # [blocks, 8, 32]
    numbers = codes.float() - 4 * (1 - is_high.float())
    scale = (_halves(blocks, 108) * scales)[..., None]
    return scale * numbers.reshape(-1, 16, 16)


def _scales_k(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and minima of 6 bits: uint8 [blocks, 12] -> twice [blocks, 8, 1]."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = torch.cat((first & 63, (third & 0xF) | ((first >> 6) << 4)), 1)
    smallest = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), 1)
    return scale.float()[..., None], smallest.float()[..., None]


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, smallest = _scales_k(blocks[:, 4:16])
    codes = _bits(blocks[:, 16:].view(-1, 4, 32), (0, 4), 0xF).reshape(-1, 8, 32).float()
    first, second = _halves(blocks, 0)[..., None], _halves(blocks, 2)[..., None]
    return first * scale * codes - second * smallest


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, smallest = _scales_k(blocks[:, 4:16])
    low = _bits(blocks[:, 48:].view(-1, 4, 32), (0, 4), 0xF).reshape(-1, 8, 32)
    high = _bits(blocks[:, 16:48], tuple(range(8)), 1)
    codes = (low | (high << 4)).float()
    first, second = _halves(blocks, 0)[..., None], _halves(blocks, 2)[..., None]
    return first * scale * codes - second * smallest


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _bits(blocks[:, :128].view(-1, 2, 64), (0, 4), 0xF).reshape(-1, 8, 32)
    high = _bits(blocks[:, 128:192].view(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 8, 32)
    codes = (low | (high << 4)).float() - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    scale = (_halves(blocks, 208) * scales)[..., None]
    return scale * codes.reshape(-1, 16, 16)


def _q8_k(blocks: torch.Tensor) -> torch.Tensor:
    scale = blocks[:, :4].contiguous().view(torch.float32)
    return scale * blocks[:, 4:260].contiguous().view(torch.int8).float()


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32)
    return _halves(blocks, 0) * values[_nibbles(blocks[:, 2:]).long()]


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32)
    low = torch.stack((blocks[:, 4:8] & 0xF, blocks[:, 4:8] >> 4), -1).reshape(-1, 8)
    high = torch.stack([(blocks[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], -1).reshape(-1, 8)
    scale = _halves(blocks, 0) * ((low | (high << 4)).float() - 32)
    return scale[..., None] * values[_nibbles(blocks[:, 8:].view(-1, 8, 16)).long()]


def _tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    """Five numbers of three values a byte, the highest digit first; four in the last bytes."""

    def digits(codes: torch.Tensor, count: int) -> torch.Tensor:
        powers = torch.tensor([1, 3, 9, 27, 81][:count], dtype=torch.uint8)[:, None]
        turned = codes[:, None] * powers  # uint8: what overflows is the digits already read
        return ((turned.short() * 3) >> 8).float().flatten(1)

    parts = (digits(blocks[:, :32], 5), digits(blocks[:, 32:48], 5), digits(blocks[:, 48:52], 4))
    return _halves(blocks, 52) * (torch.cat(parts, 1) - 1)


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _bits(blocks[:, :64].view(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 256)
    return _halves(blocks, 64) * (codes.float() - 1)


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(MXFP4_CODES, dtype=torch.float32)
    scale = torch.exp2(blocks[:, :1].float() - 127)
    return scale * values[_nibbles(blocks[:, 1:]).long()]


_BLOCKS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q8_1": _q8_1,
        "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_K": _q8_k,
        "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0, "MXFP4": _mxfp4,
    }
)  # fmt: skip


def _by_package(blocks: torch.Tensor, kind: BlockType) -> torch.Tensor:
    with needing("gguf", f"reading numbers of type {kind.name}"):
        import gguf
    if kind.name not in gguf.GGMLQuantizationType.__members__:
        raise UnsupportedModelError(
            f"numbers of type {kind.name} are not known to the package gguf that is installed",
            hint="Install a newer one, or convert the checkpoint that the file was made from.",
        )
    found: Any = gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind.name])
    return torch.from_numpy(found).reshape(-1).float()

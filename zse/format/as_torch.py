"""Torch views of a file's bytes, and the dequantizer of every scheme.

Views share the mapping and must not be written to: the pages are read-only, and torch has no
read-only tensors.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import TYPE_CHECKING

import torch

from zse.format.few_bits import LOW_BITS, PIECE_WORDS, THIRD_BITS
from zse.format.mxfp4 import MXFP4_CODES
from zse.format.nf4 import NF4_CODES
from zse.format.nl4 import NL4_CODES, SCALE_BIAS
from zse.format.schemes import PACKED_COLUMNS, PLAIN, DType, Scheme, code_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from zse.format.reader import ZSEReader
    from zse.format.spec import TensorEntry, TensorPart

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I32: torch.int32,
}


def tensor_from(data: Buffer, part: TensorPart) -> torch.Tensor:
    """Return a tensor over ``data`` with the part's dtype and shape, without a copy."""
    with warnings.catch_warnings():
        # torch warns that the buffer is read-only; that is what we want.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        flat = torch.frombuffer(data, dtype=TORCH_DTYPES[part.dtype])
    return flat.reshape(part.shape)


def matrix_from(data: bytes, scheme: Scheme, columns: int) -> torch.Tensor:
    """Return plain numbers, row by row, as float32 [rows, columns]: a copy."""
    flat = torch.frombuffer(bytearray(data), dtype=TORCH_DTYPES[PLAIN[scheme]])
    return flat.view(-1, columns).float()


def bytes_from(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a CPU tensor for ``ZSEWriter.write_part``; the inverse of tensor_from.

    No copy is made when the tensor is contiguous. The view keeps the tensor alive.
    """
    tensor = tensor.detach().contiguous()
    size = tensor.numel() * tensor.element_size()
    array = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    array.owner = tensor  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def stored_parts(reader: ZSEReader, name: str) -> dict[str, torch.Tensor]:
    """Return a tensor's parts by role, without a copy."""
    entry = reader.entry(name)
    return {part.role: tensor_from(reader.part(name, part.role), part) for part in entry.parts}


def stored_tensors(reader: ZSEReader, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return tensors as stored: plain ones by name, parts of quantized ones by ``name.role``."""
    tensors: dict[str, torch.Tensor] = {}
    for name in names:
        plain = reader.entry(name).scheme.is_plain
        for role, tensor in stored_parts(reader, name).items():
            tensors[name if plain else f"{name}.{role}"] = tensor
    return tensors


def dequantize(entry: TensorEntry, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the numbers that a stored tensor stands for.

    Args:
        parts: Its parts by role, with the dtypes and shapes of the entry.

    Returns:
        A new float32 tensor of the logical shape (plain float32 data is returned as it is).
    """
    if entry.scheme.is_plain:
        return parts["data"].float()
    if entry.scheme is Scheme.INT8:
        return parts["qweight"].float() * parts["scale"].unsqueeze(1)
    rows, columns = entry.shape
    packed = widen_codes(parts["qweight"], code_bits(entry.scheme))
    codes = unpack_nibbles(packed, max(entry.group_size, PACKED_COLUMNS))
    if entry.scheme in (Scheme.INT4, Scheme.INT3, Scheme.INT2):
        scale, minus_zero_scale = split_scale_zero(parts["scale_zero"])
        values = codes.float() * scale.unsqueeze(2) + minus_zero_scale.unsqueeze(2)
    elif entry.scheme is Scheme.NF4:
        values = _looked_up(codes, NF4_CODES) * parts["absmax"].float().unsqueeze(2)
    elif entry.scheme is Scheme.NL4:
        scale = scale_of_minifloat(parts["signed_scale"])
        groups = codes.reshape(rows, -1, entry.group_size)
        values = _looked_up(groups, NL4_CODES) * scale.unsqueeze(2)
    else:
        scale = scale_of_exponent(parts["exponent"])
        values = _looked_up(codes, MXFP4_CODES) * scale.unsqueeze(2)
    return values.reshape(rows, columns)


def unpack_nibbles(packed: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return 4-bit codes in the order of the weights.

    Args:
        packed: uint8 [N, K/2]; in each group, byte b holds code b low and code b + G/2 high.
        group_size: G.

    Returns:
        uint8 [N, K/G, G].
    """
    groups = packed.reshape(packed.shape[0], -1, group_size // 2)
    return torch.cat((groups & 0x0F, groups >> 4), dim=2)


def widen_codes(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes of a few bits as four-bit codes are packed.

    The inverse is ``packing.narrow_codes``.

    Args:
        packed: uint8 [N, K * bits / 8].
        bits: Of a code: 2, 3 or 4.

    Returns:
        uint8 [N, K / 2]; ``packed`` itself where it has four bits.
    """
    if bits == PIECE_WORDS:
        return packed
    rows = packed.shape[0]
    words = packed.contiguous().view(torch.int32).view(rows, -1, bits)
    found = torch.empty(*words.shape[:2], PIECE_WORDS, dtype=torch.int32, device=packed.device)
    for index in range(PIECE_WORDS):
        found[:, :, index] = (words[:, :, index // 2] >> (index % 2 * 2)) & LOW_BITS
        if bits > 2:
            found[:, :, index] |= ((words[:, :, 2] >> index) & THIRD_BITS) << 2
    return found.view(rows, -1).view(torch.uint8)


def _looked_up(codes: torch.Tensor, table: Sequence[float]) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes.int()]


def scale_of_exponent(exponent: torch.Tensor) -> torch.Tensor:
    """Return float32 2 ** (exponent - 127) of stored exponents, uint8 of any shape, 0 to 254."""
    # The exponent of a normal float32 lies in bits 23 to 30; 2 ** -127 is not a normal one.
    return (exponent.int() << 23).clamp_(min=0x00400000).view(torch.float32)


def scale_of_minifloat(stored: torch.Tensor) -> torch.Tensor:
    """Return the float32 scales of nl4 groups: a sign, four bits of exponent, three of mantissa."""
    bits = stored.int()
    # Exponent and mantissa are the low bits of a float32's exponent and the high ones of its own.
    magnitude = ((bits & 0x7F) << 20) + ((127 - SCALE_BIAS) << 23)
    return (magnitude | (bits >> 7) << 31).view(torch.float32)


def split_scale_zero(scale_zero: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split int32 [N, K/G] into float32 scale and float32 -zero*scale, both [N, K/G]."""
    rows, groups = scale_zero.shape
    pairs = scale_zero.contiguous().view(torch.float16).reshape(rows, groups, 2).float()
    return pairs[:, :, 0], pairs[:, :, 1]

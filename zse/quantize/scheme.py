"""What a quantization scheme is: rows of float32 in, the parts of the file out.

Every scheme works on whole rows with exactly rounded element-wise operations, so the bytes do not
depend on how the rows are cut into chunks nor on the number of threads. The price is a few more
passes over memory than fused reductions would take.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch

from zse.errors import ConversionError
from zse.format.spec import DType, Scheme

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I32: torch.int32,
}


class WeightScheme(Protocol):
    """One way to store a weight. Implementations are frozen and hold no tensor."""

    @property
    def scheme(self) -> Scheme:
        """The name in the file."""

    @property
    def group_size(self) -> int:
        """Elements along K that share a scale; 0 when there are no groups."""

    def quantize_blocks(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Quantize rows [num_rows, K] float32; return the parts by role, as in ``parts_for``.

        Raises:
            ConversionError: A value is infinite, not a number, or out of the scheme's range.
        """

    def dequantize_blocks(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the float32 rows that the parts stand for: the inverse, up to rounding."""


def create_scheme(scheme: Scheme, group_size: int = 0) -> WeightScheme:
    """Return the implementation of a scheme; the module is imported here."""
    from zse.quantize.int4 import Int4
    from zse.quantize.int8 import Int8
    from zse.quantize.nf4 import NF4
    from zse.quantize.plain import Plain

    if scheme is Scheme.INT4:
        return Int4(group_size=group_size)
    if scheme is Scheme.NF4:
        return NF4(group_size=group_size)
    if scheme is Scheme.INT8:
        return Int8()
    return Plain(scheme=scheme)


def check_finite(parts: dict[str, torch.Tensor], scheme: Scheme) -> dict[str, torch.Tensor]:
    """Return ``parts``, or raise ConversionError when a stored number is not finite."""
    for role, part in parts.items():
        values = part.view(torch.float16) if part.dtype == torch.int32 else part
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise ConversionError(
                f"{role} of scheme {scheme} is not finite: the weight holds an infinite value, "
                "not-a-number, or a value above the range of the stored type",
                hint="Check the checkpoint, or choose --quant bf16.",
            )
    return parts


def bytes_of_tensor(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor without a copy; keep the tensor alive."""
    if not tensor.is_contiguous():
        raise ValueError("a view of the bytes needs a contiguous tensor")
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr())).cast("B")

"""How a matrix lies in device memory."""

from __future__ import annotations

from zse.format.few_bits import BITS
from zse.kernels.layout import ACTIVATION_GROUP
from zse.records import record

SCALE_BYTES = {"int4": 4, "int3": 4, "int2": 4, "nf4": 2, "nl4": 1, "nl4_pairs": 2, "mxfp4": 1}
"""Bytes that a group of a scheme of four bits or fewer has beside its codes."""
GROUPED_SCHEMES = tuple(SCALE_BYTES)
PLAIN_SCHEMES = ("bf16", "fp16")
EVEN_ROWS = 16
"""A result whose rows are a multiple of this long is stored in whole vectors."""


@record
class LinearWeight:
    """A matrix [rows, columns] in device memory, in the layout of the file."""

    scheme: str
    """A scheme of four bits or fewer (``GROUPED_SCHEMES``), ``int8``, ``bf16`` or ``fp16``."""
    rows: int
    columns: int
    weights: int
    """Address of the codes or values."""
    group_size: int = 0
    """Columns that share a scale: 128, 64 or 32; 64 or 32 of int3 and int2; 32 in nl4, in mxfp4
    and in ``nl4_pairs``, where two scales side by side are taken as one."""
    scales: int = 0
    """Address: scale_zero int32 [rows, columns / group_size] of int4, int3 and int2, absmax float16
    of the same shape of nf4, scale uint8 of nl4, exponent uint8 of mxfp4, scale
    float32 [rows] of int8; 0 for plain schemes."""

    @property
    def form(self) -> tuple[str, int, int, int]:
        """What kernels are chosen by: everything but where it lies."""
        return self.scheme, self.rows, self.columns, self.group_size

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's codes or values."""
        if self.scheme in GROUPED_SCHEMES:
            return self.columns * BITS.get(self.scheme, 4) // 8
        return self.columns if self.scheme == "int8" else self.columns * 2

    @property
    def size_bytes(self) -> int:
        """Bytes of the matrix and its scales: what one product reads."""
        elements = self.rows * self.columns
        if self.scheme in SCALE_BYTES:
            return (
                self.rows * self.row_bytes + elements // self.group_size * SCALE_BYTES[self.scheme]
            )
        if self.scheme == "int8":
            return elements + self.rows * 4
        return elements * 2


def supports_quantized(weight: LinearWeight) -> bool:
    """Return whether the matrix can be multiplied with int8 activations."""
    grouped = weight.scheme in GROUPED_SCHEMES
    return weight.columns % ACTIVATION_GROUP == 0 and (grouped or weight.scheme == "int8")

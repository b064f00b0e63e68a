"""AWQ, as AutoAWQ's GEMM version has it: codes and zero points packed along the outputs.

The eight of an int32 are those of columns 0, 2, 4, 6, 1, 3, 5, 7, the first in the lowest bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.quantize.formats.int4_grid import (
    CODES_PER_INT,
    Int4Matrix,
    LatestNumbers,
    unpacked_columns,
)
from zse.quantize.formats.matrix import refuse_unless, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from zse.quantize.formats.matrix import Part
    from zse.quantize.safetensors_file import StoredTensor

_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
_SHIFTS = tuple(4 * _COLUMNS.index(column) for column in range(CODES_PER_INT))


class AWQ:
    """AWQ of four bits.

    Args:
        config: ``quantization_config``.

    Raises:
        UnsupportedModelError: Its codes have other bits, or another order.
    """

    title = "AWQ"
    required: tuple[str, ...] = ("qweight", "qzeros", "scales")
    optional: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    inputs_per_int = 1

    def __init__(self, config: Mapping[str, Any]) -> None:
        # The older spelling is AutoAWQ's own, the newer that of transformers.
        whole_number("bits", config.get("bits", config.get("w_bit")), 4)
        refuse_unless({"version": str(config.get("version", "gemm")).lower()}, "version", "gemm")
        refuse_unless(config, "zero_point", True)
        size = config.get("group_size", config.get("q_group_size"))
        self._group_size = whole_number("group_size", size)
        self._latest = LatestNumbers()

    def is_matrix(self, tensor: StoredTensor) -> bool:
        return tensor.name.endswith(".qweight")

    def matrix(self, parts: Mapping[str, Part]) -> Int4Matrix:
        return Int4Matrix(parts, self, self._group_size, self._latest)

    def codes(self, packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        first, end = start // CODES_PER_INT, -(-stop // CODES_PER_INT)
        columns = unpacked_columns(packed[:, first:end], _SHIFTS)
        skipped = start - first * CODES_PER_INT
        return columns[:, skipped : skipped + stop - start].t()

    def zeros(self, packed: torch.Tensor) -> torch.Tensor:
        return unpacked_columns(packed, _SHIFTS)

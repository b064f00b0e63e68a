"""AWQ, as AutoAWQ's GEMM version has it: codes and zero points packed along the outputs.

The eight of an int32 are those of columns 0, 2, 4, 6, 1, 3, 5, 7, the first in the lowest bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zse.quantize.formats.grid import GridMatrix, LatestNumbers
from zse.quantize.formats.matrix import refuse_unless, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.quantize.formats.matrix import Part
    from zse.quantize.safetensors_file import StoredTensor

_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
_CODES_PER_INT = len(_COLUMNS)
_SHIFTS = tuple(4 * _COLUMNS.index(column) for column in range(_CODES_PER_INT))


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
    nearest = "int4"
    bits = 4
    packs_inputs = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        # The older spelling is AutoAWQ's own, the newer that of transformers.
        whole_number("bits", config.get("bits", config.get("w_bit")), 4)
        refuse_unless({"version": str(config.get("version", "gemm")).lower()}, "version", "gemm")
        refuse_unless(config, "zero_point", True)
        size = config.get("group_size", config.get("q_group_size"))
        self._group_size = whole_number("group_size", size)
        self._latest = LatestNumbers()

    def form_of(self, tensor: StoredTensor) -> AWQ | None:
        return self if tensor.name.endswith(".qweight") else None

    def matrix(self, parts: Mapping[str, Part]) -> GridMatrix:
        return GridMatrix(parts, self, self._group_size, self._latest)

    def codes(self, packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        first, end = start // _CODES_PER_INT, -(-stop // _CODES_PER_INT)
        columns = _unpacked(packed[:, first:end])
        skipped = start - first * _CODES_PER_INT
        return columns[:, skipped : skipped + stop - start].t()

    def zeros(self, packed: torch.Tensor) -> torch.Tensor:
        return _unpacked(packed)


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Return [rows, 8 * ints] of [rows, ints]."""
    nibbles = (packed.unsqueeze(2) >> torch.tensor(_SHIFTS, dtype=torch.int32)) & 15
    return nibbles.flatten(1)

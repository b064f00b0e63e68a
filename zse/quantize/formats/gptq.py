"""GPTQ: codes packed along the inputs, zero points along the outputs, both in plain order.

The first version of the format stores zero points less one. Where inputs were sorted by their
activations (``desc_act``), ``g_idx`` tells each one's group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zse.quantize.formats.int4_grid import (
    CODES_PER_INT,
    Int4Matrix,
    LatestNumbers,
    unpacked_columns,
)
from zse.quantize.formats.matrix import refuse_unless, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.quantize.formats.matrix import Part
    from zse.quantize.safetensors_file import StoredTensor

_SHIFTS = tuple(range(0, 32, 4))
_VERSIONS = ("gptq", "gptq_v2")


class GPTQ:
    """GPTQ of four bits.

    Args:
        config: ``quantization_config``.

    Raises:
        UnsupportedModelError: Its codes have other bits, or another order.
    """

    title = "GPTQ"
    optional: tuple[str, ...] = ("g_idx",)
    ignored: tuple[str, ...] = ()
    inputs_per_int = CODES_PER_INT

    def __init__(self, config: Mapping[str, Any]) -> None:
        whole_number("bits", config.get("bits"), 4)
        for name in ("checkpoint_format", "format"):
            refuse_unless(config, name, *_VERSIONS)
        refuse_unless(config, "pack_dtype", "int32")
        refuse_unless(config, "is_marlin_format", False)
        self._group_size = whole_number("group_size", config.get("group_size"))
        version = config.get("checkpoint_format") or config.get("format") or _VERSIONS[0]
        self._stored_less = 1 if version == _VERSIONS[0] else 0
        needed = ("qweight", "qzeros", "scales")
        self.required: tuple[str, ...] = (*needed, "g_idx") if config.get("desc_act") else needed
        self._latest = LatestNumbers()

    def is_matrix(self, tensor: StoredTensor) -> bool:
        return tensor.name.endswith(".qweight")

    def matrix(self, parts: Mapping[str, Part]) -> Int4Matrix:
        return Int4Matrix(parts, self, self._group_size, self._latest)

    def codes(self, packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        some = packed[:, start:stop].unsqueeze(1)  # [K/8, 1, rows]
        nibbles = (some >> torch.tensor(_SHIFTS, dtype=torch.int32).view(1, -1, 1)) & 15
        return nibbles.view(-1, stop - start).t()

    def zeros(self, packed: torch.Tensor) -> torch.Tensor:
        # A zero point of 0, less one, is stored as 15.
        return (unpacked_columns(packed, _SHIFTS) + self._stored_less) & 15

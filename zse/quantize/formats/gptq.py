"""GPTQ: codes packed along the inputs, zero points along the outputs, both in plain order.

The first version of the format stores zero points less one. Where inputs were sorted by their
activations (``desc_act``), ``g_idx`` tells each one's group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.quantize.formats.bits import INT_BITS, unpack_bits
from zse.quantize.formats.grid import GridMatrix, LatestNumbers
from zse.quantize.formats.matrix import refuse_unless, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from zse.quantize.formats.matrix import Part
    from zse.quantize.safetensors_file import StoredTensor

_VERSIONS = ("gptq", "gptq_v2")


class GPTQ:
    """GPTQ. Four bits are those of our INT4; 2, 3 and 8 are widened.

    Args:
        config: ``quantization_config``.

    Raises:
        UnsupportedModelError: Its codes have other bits, or another order.
    """

    title = "GPTQ"
    optional: tuple[str, ...] = ("g_idx",)
    ignored: tuple[str, ...] = ()
    packs_inputs = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.bits = whole_number("bits", config.get("bits"), 2, 3, 4, 8)
        self.nearest = "int8" if self.bits == 8 else "int4"
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

    def form_of(self, tensor: StoredTensor) -> GPTQ | None:
        return self if tensor.name.endswith(".qweight") else None

    def matrix(self, parts: Mapping[str, Part]) -> GridMatrix:
        return GridMatrix(parts, self, self._group_size, self._latest)

    def codes(self, packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        some = packed[:, start:stop].t()
        return unpack_bits(some, self.bits, packed.shape[0] * INT_BITS // self.bits)

    def zeros(self, packed: torch.Tensor) -> torch.Tensor:
        stored = unpack_bits(packed, self.bits, packed.shape[1] * INT_BITS // self.bits)
        # A zero point of 0, less one, is stored as the largest code.
        return (stored + self._stored_less) & ((1 << self.bits) - 1)

"""INT8: symmetric, one float32 scale for each output channel.

One scale a row keeps the inner loop of a matrix product free of scales, at the price of rows with
an outlier being coarser than groups would make them.
"""

from __future__ import annotations

import torch

from zse.format.spec import Scheme
from zse.quantize.scheme import check_finite
from zse.records import record

MAX_CODE = 127


@record
class Int8:
    """Symmetric eight-bit rows; -128 is not used, so that a row and its negative mirror."""

    @property
    def scheme(self) -> Scheme:
        return Scheme.INT8

    @property
    def group_size(self) -> int:
        """Zero: a scale covers a whole row."""
        return 0

    def quantize_blocks(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Quantize [num_rows, K] float32 to qweight int8 [num_rows, K], scale float32."""
        scale = rows.abs().amax(1) / MAX_CODE  # [num_rows]
        inverse = torch.where(scale > 0, 1.0 / scale.clamp(min=1e-38), torch.zeros_like(scale))
        codes = (rows * inverse.unsqueeze(1)).round_().clamp_(-MAX_CODE, MAX_CODE)
        check_finite({"scale": scale}, self.scheme)
        return {"qweight": codes.to(torch.int8), "scale": scale}

    def dequantize_blocks(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return [num_rows, K] float32."""
        return parts["qweight"].float() * parts["scale"].unsqueeze(1)

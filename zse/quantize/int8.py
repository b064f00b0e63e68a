"""INT8: symmetric, one float32 scale for each output channel.

One scale a row keeps the inner loop of a matrix product free of scales, at the price of rows with
an outlier being coarser than groups would make them.
"""

from __future__ import annotations

import torch

from zse.quantize.packing import divided

MAX_CODE = 127
"""-128 is not used, so that a row and its negative mirror."""


def quantize_int8(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Quantize [num_rows, K] float32 to qweight int8 [num_rows, K], scale float32 [num_rows]."""
    scale = divided(rows.abs().amax(1), MAX_CODE)
    inverse = torch.where(scale > 0, 1.0 / scale.clamp(min=1e-38), torch.zeros_like(scale))
    codes = (rows * inverse.unsqueeze(1)).round_().clamp_(-MAX_CODE, MAX_CODE)
    return {"qweight": codes.to(torch.int8), "scale": scale}

"""Plain numbers: a tensor as it is, or rounded to float16 or bfloat16.

The only trade-off is range: float16 ends at 65504, so a bfloat16 weight above that is an error
and not an infinity in the file.
"""

from __future__ import annotations

import torch

from zse.format.spec import Scheme
from zse.quantize.scheme import check_finite
from zse.records import record

_DTYPES = {Scheme.FP32: torch.float32, Scheme.FP16: torch.float16, Scheme.BF16: torch.bfloat16}


@record
class Plain:
    """Stores ``data`` in one floating-point type; takes tensors of any rank.

    Attributes:
        scheme: FP32, FP16 or BF16.
    """

    scheme: Scheme

    @property
    def group_size(self) -> int:
        """Zero: there are no scales."""
        return 0

    def quantize_blocks(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Round rows of any shape to the stored type."""
        return check_finite({"data": rows.to(_DTYPES[self.scheme]).contiguous()}, self.scheme)

    def dequantize_blocks(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the same shape as float32."""
        return parts["data"].float()

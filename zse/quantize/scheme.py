"""What a quantization scheme is: rows of float32 in, the parts of the file out.

Every scheme works on whole rows with exactly rounded element-wise operations, so the bytes do not
depend on how the rows are cut into chunks nor on the number of threads. The price is a few more
passes over memory than fused reductions would take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from zse.errors import ConversionError

if TYPE_CHECKING:
    from zse.format.spec import Scheme


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

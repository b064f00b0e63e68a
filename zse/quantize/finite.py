"""Whether every number that a scheme stores is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.errors import ConversionError

if TYPE_CHECKING:
    from zse.format.schemes import Scheme


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

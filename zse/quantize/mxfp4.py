"""MXFP4: two bits of exponent and one of mantissa, a power of two for 32 weights.

By the OCP specification a group's scale is the power of two of its largest weight over that of the
largest code, which cuts weights that are up to a third above that code. Here each group takes that
scale or twice as much, whichever leaves the smaller squared error.
"""

from __future__ import annotations

import torch

from zse.format.as_torch import scale_of_exponent
from zse.format.mxfp4 import EXPONENT_BIAS, MAX_EXPONENT, MXFP4_CODES, MXFP4_GROUP
from zse.format.schemes import Scheme
from zse.quantize.finite import check_finite
from zse.quantize.packing import pack_int4, tree_sum_

_LARGEST_POWER = 2
"""The largest code is 1.5 times two to this."""
_MAX_MAGNITUDE = 7


def quantize_mxfp4(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Quantize [num_rows, K] float32 to qweight uint8 [num_rows, K/2], exponent uint8.

    Exponents are [num_rows, K/32], for groups of 32 along K.

    Raises:
        ConversionError: A group's largest weight is not finite.
    """
    num_rows, columns = rows.shape
    # [32, num_groups]: an operation on one number a group is then one on plain vectors.
    groups = rows.reshape(-1, MXFP4_GROUP).t().contiguous()
    largest = groups.abs().amax(0)
    check_finite({"largest weight": largest}, Scheme.MXFP4)
    # A number is its mantissa, 0.5 to 1, times two to this power.
    power = torch.frexp(largest).exponent - 1
    lower = (power - _LARGEST_POWER + EXPONENT_BIAS).clamp_(0, MAX_EXPONENT)
    upper = (lower + 1).clamp_(max=MAX_EXPONENT)
    codes, error = _round(groups, lower)
    other_codes, other_error = _round(groups, upper)
    wins = 4 * other_error < error  # each in units of its own scale squared
    chosen = torch.where(wins, other_codes, codes).t().reshape(num_rows, columns)
    exponent = torch.where(wins, upper, lower).to(torch.uint8)
    return {
        "qweight": pack_int4(chosen, MXFP4_GROUP),
        "exponent": exponent.view(num_rows, columns // MXFP4_GROUP),
    }


def _round(groups: torch.Tensor, exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest codes, uint8 [32, num_groups], and squared errors in units of scales."""
    scaled = groups / scale_of_exponent(exponent)
    codes = nearest_codes(scaled)
    table = torch.tensor(MXFP4_CODES, device=codes.device)
    values = table.index_select(0, codes.view(-1).int()).view(scaled.shape)
    return codes, tree_sum_(scaled.sub_(values).square_())


def nearest_codes(scaled: torch.Tensor) -> torch.Tensor:
    """Return the codes of the nearest values as uint8; of two equally near ones the even one."""
    size = scaled.abs()
    # Values are half a step apart below 2, one below 4, two above: three straight lines.
    codes = torch.where(
        size < 2,
        (size * 2).round_(),
        torch.where(size < 4, size.round() + 2, (size / 2).round_() + 4),
    )
    return codes.clamp_(max=_MAX_MAGNITUDE).to(torch.uint8) | torch.signbit(scaled).byte() << 3

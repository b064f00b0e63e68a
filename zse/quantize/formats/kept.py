"""The parts of our schemes that hold a checkpoint's own codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.format.schemes import GROUP_SIZES, Scheme
from zse.models.weights import Packing
from zse.quantize.finite import check_finite
from zse.quantize.packing import pack_int4

if TYPE_CHECKING:
    from typing import Literal


def packing_in_groups(scheme: Literal["int4", "nf4"], group_size: int) -> Packing | None:
    """Return how codes with a scale for so many inputs are kept; None: no group of ours fits.

    Groups larger than ours become several with the same scale.
    """
    fitting = next((size for size in GROUP_SIZES if group_size % size == 0), None)
    return None if fitting is None else Packing(scheme=scheme, group_size=fitting)


def int4_parts(
    codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, packing: Packing
) -> dict[str, torch.Tensor]:
    """Return INT4 with these codes [rows, K], 0 to 15; scales and offsets rounded to float16.

    Args:
        codes: Of any whole type.
        zeros: Codes that stand for zero, [rows, groups].
        scales: float32 [rows, groups].
        packing: Of the file; its groups divide those of the scales.

    Raises:
        ConversionError: A scale or an offset is above the range of float16.
    """
    offset = -zeros * scales
    pairs = torch.stack((scales.half(), offset.half()), dim=2).view(torch.int32).squeeze(2)
    parts = {
        "qweight": pack_int4(codes.to(torch.uint8).contiguous(), packing.group_size),
        "scale_zero": _of_groups(pairs, codes.shape[1], packing),
    }
    return check_finite(parts, Scheme.INT4)


def nf4_parts(
    codes: torch.Tensor, absmax: torch.Tensor, packing: Packing
) -> dict[str, torch.Tensor]:
    """Return NF4 with these codes [rows, K]; maxima [rows, groups] rounded to float16.

    Raises:
        ConversionError: A maximum is above the range of float16.
    """
    parts = {
        "qweight": pack_int4(codes.to(torch.uint8).contiguous(), packing.group_size),
        "absmax": _of_groups(absmax.half(), codes.shape[1], packing),
    }
    return check_finite(parts, Scheme.NF4)


def int8_parts(codes: torch.Tensor, scales: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return INT8 with these codes [rows, K], -128 to 127, and scales [rows].

    Raises:
        ConversionError: A scale is not finite.
    """
    parts = {"qweight": codes.to(torch.int8).contiguous(), "scale": scales.float().contiguous()}
    return check_finite(parts, Scheme.INT8)


def _of_groups(numbers: torch.Tensor, columns: int, packing: Packing) -> torch.Tensor:
    """Return [rows, groups of the file] of numbers of larger groups."""
    return numbers.repeat_interleave(columns // packing.group_size // numbers.shape[1], dim=1)

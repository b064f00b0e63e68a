"""INT8 weights times float32 rows, in exact integer arithmetic.

A row of inputs is written as a 24-bit integer times one scale, and the integer as three 8-bit
digits. Each digit row is multiplied by the int8 weights with the processor's int8 instructions,
which add up in 32-bit integers without rounding; three float32 additions put the digits together.
The result is as precise as float32 arithmetic, costs less than a bfloat16 product, and has the
same bits in every batch, because integer sums do not depend on their order.
"""

from __future__ import annotations

from functools import cache

import torch

_DIGITS = 3
_DIGIT_ZERO = 128
_OFFSET = _DIGIT_ZERO * (1 + 256 + 65536)
_LARGEST = 8_355_000.0
"""Inputs are scaled to this: with the offset added they stay below 2**24."""
_SIGN_BITS = 0x00808080
_SMALL = 2 * 1024 * 1024
"""Matrices up to this many weights are faster unpacked: a packed product costs more to start."""
_ROWS_AT_ONCE = 128
_ROW_STEP = 8
MAX_COLUMNS = 2**31 // (128 * 128)
"""A longer row could overflow a 32-bit sum."""


class Int8Linear:
    """Weights [N, K] int8 with a float32 scale per row, packed for the int8 instructions."""

    def __init__(self, qweight: torch.Tensor, scale: torch.Tensor) -> None:
        self._rows, self._columns = qweight.shape
        self._scale = scale.clone()
        self._zero_points = torch.zeros(self._rows, dtype=torch.int64)
        self._unpacked: torch.Tensor | None = None
        self._packed: torch.Tensor | None = None
        if qweight.numel() <= _SMALL:
            self._unpacked = qweight.clone().t()
        else:
            self._packed = torch.ops.onednn.qlinear_prepack(qweight, None)

    def each_row(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply [M, K] float32; exact integers make every row independent of the others."""
        count = inputs.shape[0]
        if count <= _ROW_STEP:
            return self._multiply(inputs)
        outputs = torch.empty(count, self._rows)
        for start in range(0, count, _ROWS_AT_ONCE):
            rows = inputs[start : start + _ROWS_AT_ONCE]
            used = rows.shape[0]
            # oneDNN compiles a kernel for every number of rows: keep the numbers few.
            padding = -used % _ROW_STEP
            if padding:
                rows = torch.nn.functional.pad(rows, (0, 0, 0, padding))
            outputs[start : start + used] = self._multiply(rows)[:used]
        return outputs

    all_rows = each_row

    def _multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        digits, unit = split_digits(inputs, signed=self._unpacked is not None)
        if self._unpacked is not None:
            products = torch._int_mm(digits, self._unpacked).to(torch.float32).mul_(self._scale)
        else:
            products = torch.ops.onednn.qlinear_pointwise(
                digits, 1.0, _DIGIT_ZERO, self._packed, self._scale, self._zero_points,
                None, 1.0, 0, torch.float32, "none", [], "",
            )  # fmt: skip
        products = products.view(_DIGITS, -1, self._rows)
        outputs = products[2].mul_(65536.0)
        outputs.add_(products[1], alpha=256.0).add_(products[0])
        return outputs.mul_(unit)


def split_digits(inputs: torch.Tensor, *, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Write float32 rows as three digits and a unit.

    Args:
        inputs: float32 [M, K].
        signed: Return int8 digits as they are, not uint8 digits that are 128 too large.

    Returns:
        Digits [3 * M, K], least significant first, and the unit float32 [M, 1]:
        ``inputs = unit * sum(digit_i * 256**i)``.
    """
    largest = torch.linalg.vector_norm(inputs, float("inf"), -1, keepdim=True)
    unit = largest.clamp_min_(1e-30).mul_(1.0 / _LARGEST)
    whole = (inputs / unit).round_().to(torch.int32).add_(_OFFSET)
    if signed:
        # Flipping a byte's top bit subtracts 128 from it, read as a signed number.
        whole.bitwise_xor_(_SIGN_BITS)
    octets = whole.view(torch.int8 if signed else torch.uint8).view(*inputs.shape, 4)
    return octets.permute(2, 0, 1)[:_DIGITS].reshape(-1, inputs.shape[1]), unit


@cache
def int8_is_exact() -> bool:
    """Return whether this machine multiplies int8 without saturating.

    Processors without VNNI add pairs of products in 16 bits, which overflows for the largest
    values. The check multiplies exactly those.
    """
    columns = 1024
    for rows in (64, _SMALL // columns + 64):
        weights = torch.full((rows, columns), 127, dtype=torch.int8)
        weights[1::2] = -127
        inputs = torch.full((2, columns), 1.0)
        inputs[1] = -1.0
        expected = inputs @ weights.float().t()
        try:
            found = Int8Linear(weights, torch.ones(rows)).each_row(inputs)
        except (RuntimeError, AttributeError):  # the operation fails, or torch has none
            return False
        if not torch.allclose(found, expected, rtol=1e-5):
            return False
    return True

"""The gate-and-up kernel equals its reference, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.gate_up import launch as gate_up_launch
from zse.kernels.gate_up.launch import silu_mul
from zse.kernels.gate_up.reference import TOLERANCE, activated_product
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm.reference import dequantize

ROWS = 2


def inputs_of(values: torch.Tensor) -> Partials | Plain:
    """Describe float32 [splits, rows, columns] or bfloat16 [rows, columns]."""
    if values.dtype == torch.bfloat16:
        return Plain(rows=ROWS, columns=values.shape[1], values=values.data_ptr())
    splits, rows, columns = values.shape
    return Partials(rows=rows, columns=columns, splits=splits, values=values.data_ptr())


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = float((found.float() - expected).abs().max() / expected.abs().max())
    assert error <= TOLERANCE


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("splits", [0, 1, 5])
@pytest.mark.parametrize("width", [48, 384])
def test_plain_output_equals_the_reference(width: int, splits: int, activation: str) -> None:
    torch.manual_seed(1)
    parts = torch.randn(max(splits, 1), ROWS, 2 * width) * 2
    if splits == 0:
        parts = parts[0].bfloat16()
    out = torch.zeros(ROWS, width, dtype=torch.bfloat16)
    output = Plain(rows=ROWS, columns=width, values=out.data_ptr())
    silu_mul(InterpretedLauncher(), inputs_of(parts), output, activation=activation)
    joined = parts.float() if splits == 0 else parts.sum(0)
    check(out, activated_product(joined, activation))


def test_summands_of_some_rows_of_a_product_are_found() -> None:
    torch.manual_seed(3)
    parts = torch.randn(3, 5, 96)
    out = torch.zeros(ROWS, 48, dtype=torch.bfloat16)
    whole = inputs_of(parts)
    assert isinstance(whole, Partials)
    output = Plain(rows=ROWS, columns=48, values=out.data_ptr())
    silu_mul(InterpretedLauncher(), whole.part(2, ROWS), output)
    check(out, activated_product(parts.sum(0)[2:4]))


@pytest.mark.parametrize("many", [False, True])
def test_quantized_output_equals_the_reference(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        monkeypatch.setattr(gate_up_launch, "PROGRAMS_A_MULTIPROCESSOR", 0)
    torch.manual_seed(2)
    width = 384
    parts = torch.randn(2, ROWS, 2 * width)
    codes = torch.zeros(ROWS, width, dtype=torch.int8)
    scales, sums = torch.zeros(ROWS, width // 128), torch.zeros(ROWS, width // 128)
    output = Quantized(
        rows=ROWS, columns=width, codes=codes.data_ptr(), scales=scales.data_ptr(),
        sums=sums.data_ptr(),
    )  # fmt: skip
    launcher = InterpretedLauncher()
    silu_mul(launcher, inputs_of(parts), output)
    assert ("GROUPS=8" in launcher.launched[0]) == many
    check(dequantize(codes, scales), activated_product(parts.sum(0)))
    torch.testing.assert_close(sums, scales * codes.float().unflatten(1, (-1, 128)).sum(-1))


def test_an_unknown_activation_is_refused() -> None:
    buffer = Plain(rows=1, columns=16, values=0)
    source = Plain(rows=1, columns=32, values=0)
    with pytest.raises(UnsupportedModelError, match="relu"):
        silu_mul(InterpretedLauncher(), source, buffer, activation="relu")

"""The gate-and-up kernel equals its reference, in the interpreter."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.gate_up import launch as gate_up_launch
from zse.kernels.gate_up.launch import activate, activate_times
from zse.kernels.gate_up.reference import TOLERANCE, activated_product
from zse.kernels.layout import ACTIVATIONS, Partials, Plain, Quantized
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


@pytest.mark.parametrize("splits", [0, 1, 5])
@pytest.mark.parametrize("width", [48, 384])
def test_plain_output_equals_the_reference(width: int, splits: int) -> None:
    torch.manual_seed(1)
    parts = torch.randn(max(splits, 1), ROWS, 2 * width) * 2
    if splits == 0:
        parts = parts[0].bfloat16()
    out = torch.zeros(ROWS, width, dtype=torch.bfloat16)
    output = Plain(rows=ROWS, columns=width, values=out.data_ptr())
    activate(InterpretedLauncher(), inputs_of(parts), output)
    joined = parts.float() if splits == 0 else parts.sum(0)
    check(out, activated_product(joined))


def test_summands_of_some_rows_of_a_product_are_found() -> None:
    torch.manual_seed(3)
    parts = torch.randn(3, 5, 96)
    out = torch.zeros(ROWS, 48, dtype=torch.bfloat16)
    whole = inputs_of(parts)
    assert isinstance(whole, Partials)
    output = Plain(rows=ROWS, columns=48, values=out.data_ptr())
    activate(InterpretedLauncher(), whole.part(2, ROWS), output)
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
    activate(launcher, inputs_of(parts), output)
    assert ("GROUPS=8" in launcher.launched[0]) == many
    check(dequantize(codes, scales), activated_product(parts.sum(0)))
    torch.testing.assert_close(sums, scales * codes.float().unflatten(1, (-1, 128)).sum(-1))


@pytest.mark.parametrize(
    ("activation", "gated"),
    [*product(ACTIVATIONS, (True,)), *product(ACTIVATIONS[:-1], (False,))],
)
@pytest.mark.parametrize("splits", [0, 3])
def test_every_activation_gated_or_not_with_a_bias_equals_the_reference(
    splits: int, activation: str, gated: bool
) -> None:
    torch.manual_seed(4)
    width, columns = 144, 288 if gated else 144
    parts, bias = torch.randn(max(splits, 1), ROWS, columns) * 2, torch.randn(columns)
    if splits == 0:
        parts = parts[0].bfloat16()
    out = torch.zeros(ROWS, width, dtype=torch.bfloat16)
    activate(
        InterpretedLauncher(), inputs_of(parts),
        Plain(rows=ROWS, columns=width, values=out.data_ptr()),
        activation=activation, gated=gated, bias_address=bias.data_ptr(),
    )  # fmt: skip
    joined = parts.float() if splits == 0 else parts.sum(0)
    check(out, activated_product(joined, activation, gated=gated, bias=bias))


@pytest.mark.parametrize("limit", [None, 1.5])
def test_a_bounded_gate_and_a_bounded_up(limit: float | None) -> None:
    torch.manual_seed(6)
    parts = torch.randn(2, ROWS, 352) * 3
    codes = torch.zeros(ROWS, 176, dtype=torch.int8)
    scales, sums = torch.zeros(ROWS, 2), torch.zeros(ROWS, 2)
    output = Quantized(
        rows=ROWS, columns=176, codes=codes.data_ptr(), scales=scales.data_ptr(),
        sums=sums.data_ptr(),
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="multiple of 32"):
        activate(InterpretedLauncher(), inputs_of(parts), output, activation="swiglu_oai")
    parts, codes = parts[..., :320].contiguous(), torch.zeros(ROWS, 160, dtype=torch.int8)
    output = Quantized(
        rows=ROWS, columns=160, codes=codes.data_ptr(), scales=scales.data_ptr(),
        sums=sums.data_ptr(),
    )  # fmt: skip
    activate(InterpretedLauncher(), inputs_of(parts), output, activation="swiglu_oai", limit=limit)
    found = dequantize(torch.nn.functional.pad(codes, (0, 96)), scales)[:, :160]
    bound = float("inf") if limit is None else limit
    check(found, activated_product(parts.sum(0), "swiglu_oai", limit=bound))


def test_activations_without_a_gate_and_a_bias_become_codes() -> None:
    torch.manual_seed(5)
    parts = torch.randn(2, ROWS, 256)
    codes = torch.zeros(ROWS, 256, dtype=torch.int8)
    scales, sums = torch.zeros(ROWS, 2), torch.zeros(ROWS, 2)
    output = Quantized(
        rows=ROWS, columns=256, codes=codes.data_ptr(), scales=scales.data_ptr(),
        sums=sums.data_ptr(),
    )  # fmt: skip
    activate(InterpretedLauncher(), inputs_of(parts), output, activation="gelu_tanh", gated=False)
    check(dequantize(codes, scales), activated_product(parts.sum(0), "gelu_tanh", gated=False))


def test_an_unknown_activation_is_refused() -> None:
    buffer = Plain(rows=1, columns=16, values=0)
    source = Plain(rows=1, columns=32, values=0)
    with pytest.raises(UnsupportedModelError, match="relu"):
        activate(InterpretedLauncher(), source, buffer, activation="relu")


@pytest.mark.parametrize("quantized", [False, True])
def test_what_is_activated_may_be_multiplied_by_columns_of_longer_rows(quantized: bool) -> None:
    torch.manual_seed(9)
    parts, factors = torch.randn(3, ROWS, 256), torch.randn(ROWS, 3 * 256)
    plain = torch.zeros(ROWS, 256, dtype=torch.bfloat16)
    codes = torch.zeros(ROWS, 256, dtype=torch.int8)
    scales, sums = torch.zeros(ROWS, 2), torch.zeros(ROWS, 2)
    output: Plain | Quantized = Plain(rows=ROWS, columns=256, values=plain.data_ptr())
    if quantized:
        output = Quantized(
            rows=ROWS, columns=256, codes=codes.data_ptr(), scales=scales.data_ptr(),
            sums=sums.data_ptr(),
        )  # fmt: skip
    products = inputs_of(parts)
    assert isinstance(products, Partials)
    activate_times(
        InterpretedLauncher(), products, factors[0, 512:].data_ptr(), 768, output,
        activation="gelu_tanh",
    )  # fmt: skip
    expected = activated_product(parts.sum(0), "gelu_tanh", gated=False) * factors[:, 512:]
    check(dequantize(codes, scales) if quantized else plain, expected)


def test_factors_of_other_columns_are_refused() -> None:
    output = Plain(rows=ROWS, columns=128, values=0)
    products = Partials(rows=ROWS, columns=256, splits=1, values=0)
    with pytest.raises(UnsupportedModelError, match="256 columns into 128"):
        activate_times(InterpretedLauncher(), products, 0, 512, output, activation="gelu")

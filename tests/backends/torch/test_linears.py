"""Packed matrices: as precise as float32, independent rows, no hidden copy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from restored_rows import restored

from zse.backends.torch import int8_linear
from zse.backends.torch.forms import kept_bytes
from zse.backends.torch.int4_linear import Int4Linear
from zse.backends.torch.int8_linear import Int8Linear, int8_is_exact, split_digits
from zse.backends.torch.linear import DenseLinear, Linear, int8_tiles, plain_tiles
from zse.backends.torch.weights import make_linear
from zse.format.layout import PlannedTensor
from zse.format.schemes import Scheme, code_bits
from zse.format.spec import TensorEntry
from zse.quantize.scheme import quantize_rows

FORMS = (
    *("dense", "fp16", "bf16", "int8", "int8_packed", "int8_tiles"),
    *("int4", "int3", "int2", "nf4", "nl4", "nl4_16", "mxfp4"),
)


def make(
    form: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Linear, torch.Tensor]:
    """Return a matrix in one form, and its dequantized weights."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 0.1
    if form == "dense":
        return DenseLinear(weight), weight
    if form in ("fp16", "bf16"):
        data = weight.half() if form == "fp16" else weight.bfloat16()
        return plain_tiles(data), data.float()
    scheme = Scheme(form.split("_")[0])
    group_size = 16 if form == "nl4_16" else 32
    parts = quantize_rows(scheme, weight, group_size)
    values = restored(scheme, parts, weight.shape, group_size)
    if form == "int8_tiles":
        return int8_tiles(parts["qweight"], parts["scale"]), values
    if form.startswith("int8"):
        if form == "int8_packed":
            if not int8_is_exact():
                pytest.skip("the packed product of this processor saturates; zse takes tiles here")
            monkeypatch.setattr(int8_linear, "_SMALL", 0)
        return Int8Linear(parts["qweight"], parts["scale"]), values
    if form in ("int4", "int3", "int2"):
        bits = code_bits(scheme)
        return Int4Linear(parts["qweight"], parts["scale_zero"], 32, bits), values
    entry = TensorEntry(
        name="w", scheme=scheme, shape=(rows, columns), group_size=group_size, parts=()
    )
    return make_linear(entry, parts, "mapped"), values


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (300, 96), (1030, 1056)])
def test_products_are_those_of_the_dequantized_weights(
    form: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, values = make(form, rows, columns, monkeypatch)
    for count in (1, 2, 9, 140):
        inputs = torch.randn(count, columns)
        inputs[0, 0] = 30.0  # an outlier, as real activations have
        expected = (inputs.double() @ values.double().t()).float()
        for found in (linear.each_row(inputs), linear.all_rows(inputs)):
            assert found.shape == expected.shape
            assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_each_row_has_the_same_bits_in_every_company(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, _ = make(form, 300, 96, monkeypatch)
    inputs = torch.randn(21, 96)
    alone = torch.cat([linear.each_row(row) for row in torch.split(inputs, 1)])
    assert torch.equal(linear.each_row(inputs), alone)
    assert torch.equal(linear.each_row(inputs[4:9]), alone[4:9])


@pytest.mark.parametrize("shape", [(1024, 1024), (300, 384)])
def test_packed_matrices_take_what_was_said_before(shape: tuple[int, int]) -> None:
    weights = torch.randn(shape)
    parts = quantize_rows(Scheme.INT4, weights, 128)
    int4 = Int4Linear(parts["qweight"], parts["scale_zero"], 128)
    planned = PlannedTensor(name="w", scheme=Scheme.INT4, shape=shape, group_size=128)
    own = (int4._table, int4._scale, int4._minus_zero_scale)
    assert sum(tensor.nbytes for tensor in own) == kept_bytes(planned, "int4")
    parts = quantize_rows(Scheme.INT8, weights)
    int8 = Int8Linear(parts["qweight"], parts["scale"])
    planned = PlannedTensor(name="w", scheme=Scheme.INT8, shape=shape)
    own = (int8._unpacked, int8._scale, int8._zero_points)
    assert sum(tensor.nbytes for tensor in own) == kept_bytes(planned, "int8")


@settings(max_examples=50)
@given(
    values=st.lists(
        st.floats(-(2.0**66), 2.0**66, width=32, allow_subnormal=False), min_size=1, max_size=40
    ),
    signed=st.booleans(),
)
def test_digits_put_together_are_the_inputs(values: list[float], signed: bool) -> None:
    inputs = torch.tensor([values, [0.0] * len(values)])
    digits, unit = split_digits(inputs, signed=signed)
    parts = digits.view(3, 2, -1).double() - (0 if signed else 128)
    joined = unit.double() * (parts[0] + 256 * parts[1] + 65536 * parts[2])
    assert float((joined - inputs).abs().max()) <= 1.1 * float(unit.max())
    assert torch.equal(joined[1], torch.zeros(len(values), dtype=torch.float64))


def test_machine_that_saturates_int8_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left.int() @ right.int()).clamp(-32768, 32767).int()

    monkeypatch.setattr(torch, "_int_mm", saturating)
    int8_is_exact.cache_clear()
    assert not int8_is_exact()
    int8_is_exact.cache_clear()

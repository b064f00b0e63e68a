"""Random matrices in every scheme, and activations for them, with what they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zse.format.nf4 import NF4_CODES
from zse.kernels.layout import Plain, Quantized
from zse.kernels.linear.reference import (
    dequantize_int4,
    dequantize_int8,
    dequantize_mxfp4,
    dequantize_nf4,
    dequantize_nl4,
    widen_codes,
)
from zse.kernels.linear.tables import NF4_INT8, NF4_INT8_SCALE
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.norm.reference import dequantize, quantize


@dataclass
class Matrix:
    weight: LinearWeight
    exact: torch.Tensor
    """float64 [N, K]."""
    int8_values: torch.Tensor
    """What int8 kernels stand for: nf4 values rounded to int8."""
    kept: tuple[torch.Tensor, ...]


def make_matrix(
    scheme: str, rows: int, columns: int, group: int = 0, device: str = "cpu"
) -> Matrix:
    generator = torch.Generator(device).manual_seed(rows * 7919 + columns * 31 + group)

    def random(low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=dtype, device=device)

    def uniform(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device=device)

    if scheme in ("int4", "int3", "int2"):
        bits = int(scheme[3:])
        codes = random(0, 256, (rows, columns * bits // 8), torch.uint8)
        packed = codes if bits == 4 else widen_codes(codes, bits)
        scale = (uniform((rows, columns // group)) * 0.01 + 0.001).half()
        zero = (-(uniform(scale.shape) * 3 + 6) * 2.0 ** (bits - 4) * scale.float()).half()
        scales = torch.stack((scale, zero), -1).view(torch.int32).squeeze(-1).contiguous()
        exact = dequantize_int4(packed, scales, group)
        values = exact
    elif scheme == "nf4":
        codes = random(0, 256, (rows, columns // 2), torch.uint8)
        scales = (uniform((rows, columns // group)) * 0.1 + 0.01).half()
        scales[::2] *= -1  # the table is turned around where it fits better
        exact = dequantize_nf4(codes, scales, group, torch.tensor(NF4_CODES))
        table = torch.tensor(NF4_INT8).double() / NF4_INT8_SCALE
        values = dequantize_nf4(codes, scales, group, table)
    elif scheme == "mxfp4":
        codes = random(0, 256, (rows, columns // 2), torch.uint8)
        scales = random(118, 124, (rows, columns // group), torch.uint8)
        exact = values = dequantize_mxfp4(codes, scales)
    elif scheme in ("nl4", "nl4_pairs"):
        codes = random(0, 256, (rows, columns // 2), torch.uint8)
        count = columns // (16 if scheme == "nl4_pairs" else group)
        signs = random(0, 2, (rows, count), torch.uint8) * 128
        scales = random(24, 64, (rows, count), torch.uint8) + signs
        exact = values = dequantize_nl4(codes, scales)
    elif scheme == "int8":
        codes = random(-127, 128, (rows, columns), torch.int8)
        scales = uniform((rows,)) * 0.001 + 0.0001
        exact = values = dequantize_int8(codes, scales)
    else:
        dtype = torch.bfloat16 if scheme == "bf16" else torch.float16
        values = torch.randn(rows, columns, generator=generator, device=device)
        codes = (values * 0.02).to(dtype)
        scales = torch.zeros(0)
        exact = values = codes.double()
    weight = LinearWeight(
        scheme=scheme,
        rows=rows,
        columns=columns,
        weights=codes.data_ptr(),
        group_size=group,
        scales=scales.data_ptr() if scales.numel() else 0,
    )
    return Matrix(weight=weight, exact=exact, int8_values=values, kept=(codes, scales))


@dataclass
class Inputs:
    activation: Plain | Quantized
    exact: torch.Tensor
    """float64 [M, K]."""
    kept: tuple[torch.Tensor, ...]


def make_inputs(rows: int, columns: int, *, quantized: bool, device: str = "cpu") -> Inputs:
    generator = torch.Generator(device).manual_seed(rows * 131 + columns)
    values = torch.randn(rows, columns, generator=generator, device=device) + 0.1
    if not quantized:
        plain = values.bfloat16()
        return Inputs(
            activation=Plain(rows=rows, columns=columns, values=plain.data_ptr()),
            exact=plain.double(),
            kept=(plain,),
        )
    codes, scales, sums = quantize(values)
    return Inputs(
        activation=Quantized(
            rows=rows,
            columns=columns,
            codes=codes.data_ptr(),
            scales=scales.data_ptr(),
            sums=sums.data_ptr(),
        ),
        exact=dequantize(codes, scales).double(),
        kept=(codes, scales, sums),
    )


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of what was wanted."""
    return ((found.double() - wanted).norm() / wanted.norm()).item()

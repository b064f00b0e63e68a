"""4-bit matrix products of others, and cuBLAS in 16 bits, timed as ours are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gpu_timing import graph_us
from kernel_cases import FLUSHED_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS = ("cublas_fp16", "torchao_tinygemm", "bitsandbytes_nf4", "gemlite")
GROUP = 128


def time_peer(name: str, columns: int, rows: int, tokens: int = 1) -> float:
    """Return microseconds of one product.

    Raises:
        ImportError: The peer is not installed.
    """
    bytes_each = columns * rows * (2.0 if name == "cublas_fp16" else 0.53)
    copies = max(2, min(16, round(FLUSHED_BYTES / bytes_each)))
    products = [_product(name, columns, rows) for _ in range(copies)]
    dtype = torch.bfloat16 if name == "torchao_tinygemm" else torch.float16
    x = torch.randn(tokens, columns, device="cuda", dtype=dtype)
    return graph_us([lambda product=product: product(x) for product in products])


def _product(name: str, columns: int, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    if name == "torchao_tinygemm":
        return _tinygemm(columns, rows)
    if name == "gemlite":
        return _gemlite(columns, rows)
    weight = torch.randn(rows, columns, device="cuda", dtype=torch.float16) * 0.02
    if name == "cublas_fp16":
        return lambda x: torch.nn.functional.linear(x, weight)
    import bitsandbytes
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(weight, quant_type="nf4", blocksize=64)
    return lambda x: bitsandbytes.matmul_4bit(x, packed.t(), quant_state=state)


def _tinygemm(columns: int, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    codes = torch.randint(0, 255, (rows, columns // 2), device="cuda", dtype=torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
    scales = torch.randn(columns // GROUP, rows, 2, device="cuda", dtype=torch.bfloat16) * 0.01
    return lambda x: torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, scales)


def _gemlite(columns: int, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from gemlite.core import DType, GemLiteLinearTriton

    codes = torch.randint(0, 16, (rows, columns), device="cuda", dtype=torch.uint8)
    groups = rows * columns // GROUP
    scales = torch.rand(groups, 1, device="cuda", dtype=torch.float16) * 0.01
    zeros = torch.full((groups, 1), 8.0, device="cuda", dtype=torch.float16)
    layer = GemLiteLinearTriton(
        4, GROUP, columns, rows, input_dtype=DType.FP16, output_dtype=DType.FP16
    )
    layer.pack(codes, scales, zeros, None)
    return layer

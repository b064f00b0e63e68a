"""Twins of kernels in the language below Triton, which has no interpreter: the same in torch.

They take the operands of a launch, addresses and numbers by name, the types of the arguments, and
the numbers of programs.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zse.device.gpu import Grid

    Twin = Callable[[Mapping[str, int], Mapping[str, str], Grid], None]

EVEN_ROWS, GROUP = 16, 128


def memory(address: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor of what lies at an address."""
    count = torch.Size(shape).numel()
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def product(operands: Mapping[str, int], rows: int) -> torch.Tensor:
    """Return float64 [tokens, rows] of turned tokens times turned rows, by their scales."""
    tokens, columns = operands["tokens"], operands["steps"] * GROUP
    values = memory(operands["values"], torch.int8, tokens, columns).double()
    weights = memory(operands["weights"], torch.int8, rows, columns).double()
    token_scales = memory(operands["token_scales"], torch.float32, tokens).double()
    row_scales = memory(operands["row_scales"], torch.float32, rows).double()
    return values @ weights.T * token_scales[:, None] * row_scales


def turned_gates(operands: Mapping[str, int], _types: Mapping[str, str], _grid: Grid) -> None:
    tokens, groups = operands["tokens"], operands["groups"]
    width = groups * GROUP
    gate, up = product(operands, 2 * width).chunk(2, -1)
    values = (gate * torch.sigmoid(gate) * up).bfloat16().double()
    turned = values.view(tokens, groups, GROUP) @ signs()
    memory(operands["maxima"], torch.float32, tokens, groups)[:] = turned.abs().amax(-1)
    memory(operands["outputs"], torch.bfloat16, tokens, width)[:] = turned.view(tokens, width)


def matmul_8bit(operands: Mapping[str, int], types: Mapping[str, str], _grid: Grid) -> None:
    rows, stride = operands["rows"] * EVEN_ROWS, operands["stride"] * EVEN_ROWS
    dtype = torch.float32 if types["outputs"] == "*fp32" else torch.bfloat16
    for token, line in enumerate(product(operands, rows)):
        address = operands["outputs"] + token * stride * dtype.itemsize
        memory(address, dtype, rows)[:] = line


def direct_products(operands: Mapping[str, int], types: Mapping[str, str], grid: Grid) -> None:
    """Int8 tokens times rows of int4 in groups of 128, or of int8: the columns of each split."""
    tokens, rows, blocks = operands["rows"], operands["N"], operands["blocks"]
    shape = (tokens, blocks, GROUP)
    codes = memory(operands["codes"], torch.int8, *shape).double()
    values = codes * memory(operands["x_scales"], torch.float32, *shape[:2]).double()[..., None]
    if types["scales"] == "*fp32":
        weights = memory(operands["weights"], torch.int8, rows, blocks, GROUP).double()
        weights = weights * memory(operands["scales"], torch.float32, rows, 1, 1).double()
    else:
        packed = memory(operands["weights"], torch.uint8, rows, blocks, GROUP // 2)
        pairs = memory(operands["scales"], torch.float16, rows, blocks, 2, 1).double()
        weights = torch.cat((packed & 15, packed >> 4), -1) * pairs[:, :, 0] + pairs[:, :, 1]
    splits = grid[1]
    outputs = memory(operands["outputs"], torch.float32, splits, tokens, rows)
    for split in range(splits):
        own = slice(split * blocks // splits, (split + 1) * blocks // splits)
        outputs[split] = torch.einsum("mbk,nbk->mn", values[:, own], weights[:, own])


def signs() -> torch.Tensor:
    """Return Hadamard's matrix of 128 columns, float64."""
    found = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(7):
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)], 0)
    return found


TWINS: Mapping[str, Twin] = {
    "linear.imma_direct": direct_products,
    "turned.gates": turned_gates,
    "linear.matmul_8bit_apart": matmul_8bit,
}

"""Twins of kernels in the language below Triton, which has no interpreter: the same in torch.

They take the operands of a launch, addresses and numbers by name, the types of the arguments, and
the numbers of programs.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from zse.format.mxfp4 import MXFP4_CODES
from zse.kernels.turned.variants import GATES_EXTRA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zse.device.gpu import Grid

    Twin = Callable[[Mapping[str, int], Mapping[str, str], Grid], None]

EVEN_ROWS, GROUP = 16, 128


def memory(address: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor of what lies at an address."""
    count = torch.Size(shape).numel()
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def product(operands: Mapping[str, int], rows: int, columns: slice = slice(None)) -> torch.Tensor:
    """Return float32 [tokens, rows] of turned tokens times turned rows, in the kernels' bits."""
    tokens, all_columns = operands["tokens"], operands["steps"] * GROUP
    values = memory(operands["values"], torch.int8, tokens, all_columns)[:, columns].double()
    weights = memory(operands["weights"], torch.int8, rows, all_columns)[:, columns].double()
    token_scales = memory(operands["token_scales"], torch.float32, tokens)
    row_scales = memory(operands["row_scales"], torch.float32, rows)
    return (values @ weights.T).float() * token_scales[:, None] * row_scales


def turned_gates(operands: Mapping[str, int], _types: Mapping[str, str], _grid: Grid) -> None:
    tokens, groups = operands["tokens"], operands["groups"]
    width = groups * GROUP
    gate, up = product(operands, 2 * width).double().chunk(2, -1)
    values = (gate * torch.sigmoid(gate) * up).bfloat16().double()
    tiles = operands["tiles"]
    by_group = values.view(tokens, groups, GROUP)
    by_group[:, :tiles] = by_group[:, :tiles] @ signs(GROUP)
    pieces = by_group[:, tiles:].unflatten(2, (-1, GATES_EXTRA))  # the others by pieces
    by_group[:, tiles:] = (pieces @ signs(GATES_EXTRA)).flatten(2)
    maxima = memory(operands["maxima"], torch.float32, tokens, groups)
    maxima[:, :tiles] = by_group[:, :tiles].abs().amax(-1)
    memory(operands["outputs"], torch.bfloat16, tokens, width)[:] = by_group.view(tokens, width)


def matmul_8bit(operands: Mapping[str, int], types: Mapping[str, str], grid: Grid) -> None:
    rows, stride = operands["rows"] * EVEN_ROWS, operands["stride"] * EVEN_ROWS
    dtype = torch.float32 if types["outputs"] == "*fp32" else torch.bfloat16
    steps, splits, address = operands["steps"], grid[1], operands["outputs"]
    for split in range(splits):
        begin, end = (steps * each // splits * GROUP for each in (split, split + 1))
        for line in product(operands, rows, slice(begin, end)):
            memory(address, dtype, rows)[:] = line
            address += stride * dtype.itemsize


def direct_products(operands: Mapping[str, int], types: Mapping[str, str], grid: Grid) -> None:
    """Int8 tokens times rows of int4 in groups of 128, or of int8, in the bits of ``imma``."""
    tokens, rows, blocks = operands["rows"], operands["N"], operands["blocks"]
    codes = memory(operands["codes"], torch.int8, tokens, blocks, GROUP).double()
    x_scales = memory(operands["x_scales"], torch.float32, tokens, blocks, 1)
    x_sums = memory(operands["x_sums"], torch.float32, tokens, blocks, 1)
    if types["scales"] == "*fp32":
        weights = memory(operands["weights"], torch.int8, rows, blocks, GROUP).double()
        row_scales = memory(operands["scales"], torch.float32, rows)
        pairs = None
    else:
        packed = memory(operands["weights"], torch.uint8, rows, blocks, GROUP // 2)
        weights = torch.cat((packed & 15, packed >> 4), -1).double()
        row_scales = torch.ones(rows)
        pairs = memory(operands["scales"], torch.float16, rows, blocks, 2).float()
    splits = grid[1]
    outputs = memory(operands["outputs"], torch.float32, splits, tokens, rows)
    for split in range(splits):
        total = torch.zeros(tokens, rows)
        for block in range(split * blocks // splits, (split + 1) * blocks // splits):
            product = (codes[:, block] @ weights[:, block].T).float() * x_scales[:, block]
            if pairs is None:
                total += product
            else:
                total += product * pairs[:, block, 0]
                total += pairs[:, block, 1] * x_sums[:, block]
        outputs[split] = total * row_scales


def expert_products(operands: Mapping[str, int], types: Mapping[str, str], _grid: Grid) -> None:
    """Int8 tokens times the matrices of their experts, int4 in groups of 128 or MXFP4."""
    rows, slots, height = (operands[name] for name in ("rows", "slots", "N"))
    is_down = bool(operands["is_down"])
    weights = memory(operands["expert_weights"], torch.float32, rows * slots)
    outputs = memory(operands["outputs"], torch.float32, rows * slots, height)
    for pair, product in products_of_pairs(operands, types, height, is_down=is_down):
        row, slot = divmod(pair, slots)
        line = slot * rows + row if is_down else pair
        outputs[line] = product * weights[pair] if is_down else product


def products_of_pairs(
    operands: Mapping[str, int], types: Mapping[str, str], height: int, *, is_down: bool
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each pair of a token and a slot, and float64 [height], its expert's product."""
    experts, groups, rows, slots, units = (
        operands[name] for name in ("num_experts", "groups", "rows", "slots", "units")
    )
    is_mxfp4 = types["weight_scales"] == "*u16"
    columns, scale_bytes = (units * 32, 2) if is_mxfp4 else (units * GROUP, 4)
    lines = rows * (slots if is_down else 1)
    blocks = -(-columns // GROUP)
    padded = torch.zeros(lines, blocks * GROUP, dtype=torch.float64)
    padded[:, :columns] = memory(operands["codes"], torch.int8, lines, columns)
    x_scales = memory(operands["x_scales"], torch.float32, lines, blocks, 1).double()
    values = (padded.view(lines, blocks, GROUP) * x_scales).flatten(1)[:, :columns]
    order, starts = order_of_pairs(operands, rows * slots, groups)
    for expert in range(groups):
        codes = expert * height * columns // 2
        scales = expert * height * (units // 2 * 2 if is_mxfp4 else units * 4)
        if expert == experts:
            codes = operands["shared_weights"] * 4
            scales = operands["shared_scales"] * scale_bytes
        matrix = four_bit_matrix(
            operands["weights"] + codes, operands["weight_scales"] + scales, height, units, is_mxfp4
        )
        for pair in order[starts[expert] : starts[expert + 1]]:
            product = matrix @ values[pair if is_down else pair // slots]
            if operands["has_bias"] and expert < experts:
                bias = operands["bias"] + expert * height * 4
                product += memory(bias, torch.float32, height)
            yield pair, product


def order_of_pairs(
    operands: Mapping[str, int], pairs: int, groups: int
) -> tuple[list[int], list[int]]:
    """Return pairs in the order of their experts, and where those of each begin."""
    listed = memory(operands["order"], torch.int32, pairs)
    if operands["starts"]:
        return listed.tolist(), memory(operands["starts"], torch.int32, groups + 1).tolist()
    starts = [int((listed < expert).sum()) for expert in range(groups + 1)]
    return listed.argsort(stable=True).tolist(), starts


def four_bit_matrix(
    codes: int, scales: int, height: int, units: int, is_mxfp4: bool
) -> torch.Tensor:
    """Return float64 [height, columns] of int4 in groups of 128, or of MXFP4."""
    group = 32 if is_mxfp4 else GROUP
    packed = memory(codes, torch.uint8, height, units, group // 2)
    numbers = torch.cat((packed & 15, packed >> 4), -1).long()
    if is_mxfp4:
        exponents = memory(scales, torch.uint8, height, units, 1).double() - 127
        found = torch.tensor(MXFP4_CODES, dtype=torch.float64)[numbers] * 2**exponents
    else:
        pairs = memory(scales, torch.float16, height, units, 2).double()
        found = numbers * pairs[..., :1] + pairs[..., 1:]
    return found.flatten(1)


def attention_decode_wide(
    operands: Mapping[str, int], types: Mapping[str, str], grid: Grid
) -> None:
    """One new token a row over INT8 caches that have its key and value already."""
    rows, kv_heads, _ = grid
    heads, block_tokens, dim = operands["num_heads"], 32, 128
    queries = memory(operands["queries"], torch.bfloat16, rows, heads, dim).double()
    output = torch.zeros(rows, heads, dim, dtype=torch.float64)
    stride = operands["table_stride"]
    for row, position in enumerate(memory(operands["positions"], torch.int32, rows).tolist()):
        first = max(0, position + 1 - operands["window"]) if operands["window"] else 0
        table = memory(operands["tables"] + row * stride * 4, torch.int32, stride)
        numbers = table[first // block_tokens : position // block_tokens + 1].tolist()
        for head in range(kv_heads):
            lines = [(block * kv_heads + head) * block_tokens for block in numbers]
            seen = slice(first % block_tokens, position + 1 - first // block_tokens * block_tokens)
            keys, values = (
                torch.cat([
                    memory(operands[name] + line * dim, torch.int8, block_tokens, 4, 32).double()
                    * memory(operands[scales] + line * 8, torch.float16, block_tokens, 4, 1)
                    for line in lines
                ])[seen].flatten(1)
                for name, scales in (("keys", "key_scales"), ("values", "value_scales"))
            )  # fmt: skip
            own = slice(head * heads // kv_heads, (head + 1) * heads // kv_heads)
            scores = queries[row, own] @ keys.T * operands["scale"]
            output[row, own] = torch.softmax(scores, 1) @ values
    if types["outputs"] == "*bf16":
        memory(operands["outputs"], torch.bfloat16, rows, heads, dim)[:] = output
        return
    scales = output.abs().amax(-1).float() / 127
    codes = torch.round(output / scales[..., None])
    memory(operands["outputs"], torch.int8, rows, heads, dim)[:] = codes
    memory(operands["output_scales"], torch.float32, rows, heads)[:] = scales
    memory(operands["output_sums"], torch.float32, rows, heads)[:] = scales * codes.sum(-1)


def imma_int8(operands: Mapping[str, int], _types: Mapping[str, str], _grid: Grid) -> None:
    tokens, rows, blocks = operands["rows"], operands["N"], operands["blocks"]
    codes = memory(operands["codes"], torch.int8, tokens, blocks, GROUP).double()
    scales = memory(operands["x_scales"], torch.float32, tokens, blocks, 1).double()
    weights = memory(operands["weights"], torch.int8, rows, blocks * GROUP).double()
    row_scales = memory(operands["row_scales"], torch.float32, rows).double()
    found = (codes * scales).flatten(1) @ weights.T * row_scales
    memory(operands["outputs"], torch.float32, tokens, rows)[:] = found


def signs(columns: int) -> torch.Tensor:
    """Return Hadamard's matrix of so many columns, a power of two, float64."""
    found = torch.ones(1, 1, dtype=torch.float64)
    while len(found) < columns:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)], 0)
    return found


TWINS: Mapping[str, Twin] = {
    "attention.decode_wide": attention_decode_wide,
    "experts.direct_products": expert_products,
    "linear.imma_direct": direct_products,
    "turned.gates": turned_gates,
    "linear.imma_int8_apart": imma_int8,
    "linear.matmul_8bit_apart": matmul_8bit,
}

"""What threads load of weights and activations is what products of tensor cores ask of them."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton; nothing here is compiled

from itertools import product as pairs

import pytest
import torch

from zse.kernels.linear.triton.direct import loaded

LANES, BLOCK = 32, 128
ROWS, TOKENS, PART_COLUMNS = 16, 8, 32
"""Of one product of a warp (``mma.m16n8k32``)."""


def places(bases: list[list[int]], index: int) -> tuple[int, int]:
    """Return what the bits of an index lead to in a layout: row and word."""
    row = word = 0
    for bit, (down, along) in enumerate(bases):
        if index >> bit & 1:
            row, word = row ^ down, word ^ along
    return row, word


def held_words(lane: int, rows: int, warp: int, warps: int, *, shared: bool) -> list[list[int]]:
    """Return [row, word] of each register of a thread, in order."""
    layout = loaded(rows, warps, shared)
    found = []
    for register in range(1 << len(layout.reg_bases)):
        parts = (
            places(layout.reg_bases, register),
            places(layout.lane_bases, lane),
            places(layout.warp_bases, warp),
        )
        row, word = 0, 0
        for down, along in parts:
            row, word = row ^ down, word ^ along
        found.append([row, word])
    return found


def product_of_fragments(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return int64 [16, 8]: what ``mma.m16n8k32`` makes of threads' bytes, by PTX's manual.

    Args:
        left: int64 [32 threads, 4 registers, 4 bytes].
        right: The same of 2 registers.
    """
    a = torch.zeros(ROWS, PART_COLUMNS, dtype=torch.int64)
    b = torch.zeros(PART_COLUMNS, TOKENS, dtype=torch.int64)
    for lane, byte in pairs(range(LANES), range(4)):
        column = 4 * (lane % 4) + byte
        for register in range(4):
            a[lane // 4 + 8 * (register % 2), column + 16 * (register // 2)] = left[
                lane, register, byte
            ]
        for register in range(2):
            b[column + 16 * register, lane // 4] = right[lane, register, byte]
    return a @ b


@pytest.mark.parametrize("scheme", ["int4", "int8"])
@pytest.mark.parametrize("warp", [0, 1])
def test_products_of_what_threads_loaded_are_those_of_rows_and_tokens(
    scheme: str, warp: int
) -> None:
    generator = torch.Generator().manual_seed(11)
    rows, tokens = 32, 8
    x = torch.randint(-127, 128, (tokens, BLOCK), generator=generator)
    if scheme == "int4":
        stored = torch.randint(0, 256, (rows, BLOCK // 2), generator=generator)
        values = torch.cat((stored & 15, stored >> 4), 1)
        loads = [stored]
    else:
        values = torch.randint(-127, 128, (rows, BLOCK), generator=generator)
        loads = [values[:, :64], values[:, 64:]]
    total = torch.zeros(ROWS, TOKENS, dtype=torch.int64)
    for half in range(2):
        for pair in range(2):  # of the four words that a thread loads of a row
            left = torch.zeros(LANES, 4, 4, dtype=torch.int64)
            right = torch.zeros(LANES, 2, 4, dtype=torch.int64)
            for lane in range(LANES):
                words = held_words(lane, rows, warp, 2, shared=False)
                for register in range(4):
                    row, word = words[4 * (register % 2) + 2 * pair + register // 2]
                    part = loads[half if scheme == "int8" else 0][row, 4 * word : 4 * word + 4]
                    left[lane, register] = part if scheme == "int8" else (part >> 4 * half) & 15
                words = held_words(lane, tokens, warp, 2, shared=True)
                for register in range(2):
                    token, word = words[2 * pair + register]
                    right[lane, register] = x[token, 64 * half + 4 * word :][:4]
            total += product_of_fragments(left, right)
    assert torch.equal(total, values[16 * warp : 16 * warp + 16] @ x.T)


@pytest.mark.parametrize(
    ("rows", "warps", "shared"), [(64, 4, False), (128, 4, False), (16, 2, True)]
)
def test_threads_load_every_word_once_or_all_warps_the_same(
    rows: int, warps: int, shared: bool
) -> None:
    found = [
        tuple(place)
        for warp in range(1 if shared else warps)
        for lane in range(LANES)
        for place in held_words(lane, rows, warp, warps, shared=shared)
    ]
    assert sorted(found) == [(row, word) for row in range(rows) for word in range(16)]
    if shared:
        each = [held_words(5, rows, warp, warps, shared=True) for warp in range(warps)]
        assert all(held == each[0] for held in each)

"""Norms and gates that are turned on their way out equal their reference, in the interpreter."""

from __future__ import annotations

import random

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.kernels.layout import Partials, Plain, Turned
from zse.kernels.linear.launch_8bit import turned_at, turned_bytes
from zse.kernels.turned.gates import (
    gates_bytes,
    gates_tiles,
    round_gates,
    takes_gates,
    turned_gates,
)
from zse.kernels.turned.launch import takes_norm, takes_silu, turned_norm, turned_silu
from zse.kernels.turned.reference import gated, normed

STEP = 1.01 / 127
"""Of the largest number of a row: a rounding that goes the other way."""


class Output:
    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.buffer = torch.zeros(turned_bytes(rows, columns) + 256, dtype=torch.uint8)
        self.turned = turned_at(-(-self.buffer.data_ptr() // 256) * 256, rows, columns)

    def read(self) -> torch.Tensor:
        """Return float64 [rows, columns] of what the codes mean, without the factor of 128."""
        start = self.turned.codes - self.buffer.data_ptr()
        count = self.rows * self.columns
        codes = self.buffer[start : start + count].view(torch.int8).view(self.rows, -1)
        scales_at = self.turned.scales - self.buffer.data_ptr()
        scales = self.buffer[scales_at : scales_at + 4 * self.rows].view(torch.float32)
        return codes.double() * scales.double()[:, None] * 128


def check(
    found: torch.Tensor, expected: torch.Tensor, *, often: float = 0.02, step: float = STEP
) -> None:
    """``often``: the share of numbers that may be rounded the other way."""
    most = expected.abs().amax(-1, keepdim=True)
    assert ((found - expected).abs() / most).max() <= step
    assert ((found - expected).abs() > most * 0.004).float().mean() < often


@pytest.mark.parametrize("splits", [0, 1, 3])
def test_the_norm_of_a_sum_is_stored_turned_and_the_sum_stays_in_the_stream(splits: int) -> None:
    torch.manual_seed(3)
    rows, hidden = 5, 384
    stream, weight = torch.randn(rows, hidden), torch.rand(hidden) + 0.5
    stream[:, 7] *= 60
    added = torch.randn(max(splits, 1), rows, hidden)
    wanted = stream + (added.sum(0) if splits else 0)
    pending = Partials(rows=rows, columns=hidden, splits=splits, values=added.data_ptr())
    output = Output(rows, hidden)
    turned_norm(
        InterpretedLauncher(), stream.data_ptr(), weight.data_ptr(), 1e-6, output.turned,
        added=pending if splits else None,
    )  # fmt: skip
    check(output.read(), normed(wanted, weight, 1e-6))
    assert torch.allclose(stream, wanted, atol=1e-5)


@pytest.mark.parametrize("width", [640, 128 * 129])
def test_gates_are_stored_turned_also_of_rows_that_are_held_in_two_parts(width: int) -> None:
    torch.manual_seed(4)
    joined = torch.randn(3, 2 * width).bfloat16()
    output = Output(3, width)
    inputs = Plain(rows=3, columns=2 * width, values=joined.data_ptr())
    turned_silu(InterpretedLauncher(), inputs, output.turned)
    check(output.read(), gated(joined))


def test_a_row_of_zeros_has_codes_of_zero() -> None:
    stream, weight, output = torch.zeros(2, 128), torch.ones(128), Output(2, 128)
    turned_norm(InterpretedLauncher(), stream.data_ptr(), weight.data_ptr(), 1e-6, output.turned)
    assert not output.read().any()


def test_rows_that_are_not_whole_groups_or_too_long_are_left_to_other_kernels() -> None:
    assert [hidden for hidden in (128, 200, 3584, 8192, 8320) if takes_norm(hidden)] == [
        128, 3584, 8192,
    ]  # fmt: skip
    wide = (640, 650, 29568, 40960)
    assert [width for width in wide if takes_silu(width, 256, "sm_90")] == [640, 29568]
    assert [width for width in wide if takes_silu(width, 256, "sm_80")] == [640]
    assert not takes_silu(640, 257, "sm_90")


def turned_rows(rows: int, columns: int) -> tuple[Turned, tuple[torch.Tensor, torch.Tensor]]:
    codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    scales = (torch.rand(rows) + 0.5) * 2e-4
    found = Turned(rows=rows, columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr())
    return found, (codes, scales)


@pytest.mark.parametrize(("tokens", "groups"), [(1, 3), (70, 3), (3, 134), (129, 67)])
def test_gates_meet_in_the_product_and_are_stored_turned(tokens: int, groups: int) -> None:
    """Of 134 groups, and of 67 for two tiles of tokens, some have no tile on 132 processors."""
    torch.manual_seed(6)
    width, columns = 128 * groups, 256
    inputs, held = turned_rows(tokens, columns)
    weights, own = turned_rows(2 * width, columns)
    product = (held[0].double() @ own[0].double().T) * held[1][:, None] * own[1]
    room = torch.zeros(gates_bytes(tokens, width) + 256, dtype=torch.uint8)
    address = -(-room.data_ptr() // 256) * 256
    output = Output(tokens, width)
    turned_gates(InterpretedLauncher(), inputs, weights, address)
    round_gates(InterpretedLauncher(), address, output.turned)
    # Rounded to 16 bits on the way, pieces of groups before they are added up.
    check(output.read(), gated(product), often=0.08, step=STEP * 1.1)


def rounds_of(tiles: int, tokens: int, processors: int) -> int:
    return -(-tiles * -(-tokens // 128) // processors)


def test_groups_without_a_tile_save_a_round_and_fit_beside_the_others() -> None:
    draw = random.Random(8)
    for _ in range(2000):
        groups, tokens = draw.randint(1, 256), draw.randint(1, 1100)
        processors = draw.choice([46, 78, 114, 132])
        tiles = gates_tiles(groups, tokens, processors)
        if tiles < groups:
            assert rounds_of(tiles, tokens, processors) < rounds_of(groups, tokens, processors)
            assert (groups - tiles) * 128 <= tiles * 16
            assert groups - tiles <= 32


def test_a_7b_has_no_round_that_is_nearly_empty() -> None:
    tiles = [gates_tiles(18944 // 128, tokens, 132) for tokens in (128, 256, 512, 2048)]
    assert tiles == [132, 132, 148, 148]
    assert [rounds_of(each, 128, 132) for each in (148, 132)] == [2, 1]


def test_a_row_without_gates_has_codes_of_zero() -> None:
    inputs, held = turned_rows(2, 128)
    weights, _own = turned_rows(256, 128)
    held[0].zero_()
    room = torch.full((gates_bytes(2, 128) + 256,), 7, dtype=torch.uint8)
    address = -(-room.data_ptr() // 256) * 256
    output = Output(2, 128)
    turned_gates(InterpretedLauncher(), inputs, weights, address)
    round_gates(InterpretedLauncher(), address, output.turned)
    assert not output.read().any()


def test_gates_of_broken_groups_or_other_architectures_are_left_to_other_kernels() -> None:
    assert [width for width in (640, 650, 18944, 40960) if takes_gates(width, "sm_90")] == [
        640, 18944,
    ]  # fmt: skip
    assert not takes_gates(18944, "sm_80")

"""The rotary kernels equal their reference, in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreted import InterpretedLauncher
from paged_cache import (
    Pages,
    Tables,
    angles,
    paired,
    random_factors,
    relative_error,
    usual_heads,
)

from zse.backends.torch.kept import turned
from zse.errors import UnsupportedModelError
from zse.kernels.layout import HeadInputs, HeadPart, HeadShape, Partials
from zse.kernels.rope_store.launch import rope_store, rope_table
from zse.kernels.rope_store.reference import (
    INT8_CACHE_TOLERANCE,
    NARROW_CACHE_TOLERANCE,
    TOLERANCE,
)
from zse.kernels.rope_store.reference import rope_store as reference

EPSILON = 1e-6


@pytest.mark.parametrize("columns", [64, 80, 48])
def test_the_table_of_angles_equals_float32_trigonometry_at_every_position(columns: int) -> None:
    frequencies, expected = angles(10, columns)
    table = torch.full((10, columns), -9.0)
    rope_table(
        InterpretedLauncher(), inverse_frequencies_address=frequencies.data_ptr(),
        table_address=table.data_ptr(), num_positions=10, rotary_dim=columns, factor=1.5,
    )  # fmt: skip
    torch.testing.assert_close(table, expected * 1.5, rtol=1e-5, atol=2e-6)


def check(
    shape: HeadShape,
    *,
    splits: int = 2,
    quantized: bool = False,
    narrow: bool = False,
    bias: bool = False,
    norm: bool = False,
    rotary_dim: int | None = None,
    value_epsilon: float = 0.0,
    factors: bool = False,
) -> None:
    """Run two sequences of 3 and 2 rows that cross a block, and compare everything stored."""
    torch.manual_seed(6)
    dim, heads, kv = shape.head_dim, shape.num_heads, shape.kv_heads
    positions = torch.tensor([31, 32, 33, 0, 1], dtype=torch.int32)
    table_rows = torch.tensor([1, 1, 1, 0, 0], dtype=torch.int32)
    tables = Tables([[2], [4, 1, 0]])
    pages = Pages(5, kv, dim, quantized=quantized, narrow=narrow)
    parts = torch.randn(splits, 5, shape.qkv_columns)
    bias_values = torch.randn(shape.qkv_columns) * 3
    norms = (torch.randn(dim), torch.randn(dim))
    turning = dim if rotary_dim is None else rotary_dim
    frequencies, table = angles(64, turning)
    queries = torch.zeros(5, heads, dim, dtype=torch.bfloat16)
    wide = random_factors(kv, dim, turning) if factors else torch.ones(kv, dim)
    summed = Partials(rows=5, columns=shape.qkv_columns, splits=splits, values=parts.data_ptr())
    rope_store(
        InterpretedLauncher(),
        HeadInputs(
            qkv=summed,
            cosines_sines=table.data_ptr() if turning else 0,
            positions=positions.data_ptr(),
            bias=bias_values.data_ptr() if bias else 0,
            q_norm=norms[0].data_ptr() if norm else 0,
            k_norm=norms[1].data_ptr() if norm else 0,
            epsilon=EPSILON,
            rotary_dim=rotary_dim,
            value_epsilon=value_epsilon,
            key_factors=wide.data_ptr() if factors else 0,
        ),
        shape, pages.cache, tables.tables,
        table_rows_address=table_rows.data_ptr(), queries_address=queries.data_ptr(),
    )  # fmt: skip
    total = parts.sum(0) + (bias_values if bias else 0)
    cache = torch.zeros(5, 2 * kv, dim)
    expected = reference(
        usual_heads(total.unflatten(1, (-1, dim)), shape, value_epsilon), positions.long(),
        frequencies, torch.arange(5), cache, heads, (*norms, EPSILON) if norm else None,
    )  # fmt: skip
    expected = expected * wide.repeat_interleave(shape.group, 0)
    cache[:, :kv] /= wide
    order = paired(dim, turning)
    cache[:, :kv] = cache[:, :kv, order]
    expected = expected[..., order]
    limit = INT8_CACHE_TOLERANCE if quantized else TOLERANCE
    if narrow:
        expected, limit = turned(expected), NARROW_CACHE_TOLERANCE
        cache[:, :kv] = turned(cache[:, :kv])
    assert relative_error(queries, expected) <= TOLERANCE
    untouched = pages.read([4, 1, 0], 96)
    if not quantized:
        assert untouched[: 31 if shape.stores else 96].isnan().all()
        assert untouched[34:].isnan().all()
    if shape.stores:
        assert relative_error(pages.read([4, 1], 34)[31:], cache[:3]) <= limit
        assert relative_error(pages.read([2], 2), cache[3:]) <= limit


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_queries_and_the_cache_equal_the_reference(quantized: bool, norm: bool, bias: bool) -> None:
    shape = HeadShape(num_heads=6, kv_heads=2, head_dim=64)
    check(shape, quantized=quantized, norm=norm, bias=bias)


@pytest.mark.parametrize("rotary_dim", [None, 32])
def test_keys_are_divided_by_their_factors_and_queries_multiplied(rotary_dim: int | None) -> None:
    shape = HeadShape(num_heads=4, kv_heads=2, head_dim=64)
    check(shape, quantized=True, bias=True, factors=True, rotary_dim=rotary_dim)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, None), (128, None), (256, 64)])
def test_keys_and_queries_are_turned_for_a_cache_of_four_bits(
    head_dim: int, rotary_dim: int | None
) -> None:
    shape = HeadShape(num_heads=3, kv_heads=1, head_dim=head_dim)
    check(shape, narrow=True, norm=True, rotary_dim=rotary_dim)


@pytest.mark.parametrize("splits", [1, 5])
def test_any_number_of_summands_is_read(splits: int) -> None:
    check(HeadShape(num_heads=2, kv_heads=2, head_dim=64), splits=splits)


@pytest.mark.parametrize(("head_dim", "quantized"), [(80, False), (96, False), (128, True)])
def test_other_head_widths(head_dim: int, quantized: bool) -> None:
    check(HeadShape(num_heads=3, kv_heads=1, head_dim=head_dim), quantized=quantized, norm=True)


def test_columns_that_no_table_is_made_for_are_refused() -> None:
    for columns in (0, 7, 1024):
        with pytest.raises(UnsupportedModelError, match=f"^{columns} columns of a head turn"):
            rope_table(
                InterpretedLauncher(), inverse_frequencies_address=0, table_address=0,
                num_positions=1, rotary_dim=columns,
            )  # fmt: skip


GATED: tuple[HeadPart, ...] = ("query", "gate", "key", "value")


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (HeadShape(num_heads=6, kv_heads=2, head_dim=64), {"rotary_dim": 32}),
        (HeadShape(num_heads=6, kv_heads=2, head_dim=64), {"rotary_dim": 0, "bias": True}),
        (HeadShape(num_heads=4, kv_heads=2, head_dim=64, parts=GATED),
         {"rotary_dim": 16, "norm": True, "bias": True}),
        (HeadShape(num_heads=2, kv_heads=1, head_dim=128, parts=("query", "key")),
         {"rotary_dim": 32, "norm": True, "value_epsilon": 1e-2}),
        (HeadShape(num_heads=1, kv_heads=1, head_dim=512), {"norm": True, "value_epsilon": 1e-2}),
    ],
)  # fmt: skip
def test_heads_of_families_equal_the_reference(
    shape: HeadShape, options: dict[str, Any], quantized: bool
) -> None:
    check(shape, quantized=quantized, **options)


def test_a_layer_without_keys_of_its_own_leaves_the_cache_alone() -> None:
    shape = HeadShape(num_heads=3, kv_heads=1, head_dim=64, parts=("query",))
    check(shape, norm=True, bias=True)


def test_a_head_width_that_no_kernel_takes_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="head_dim 96 with an int8 cache"):
        check(HeadShape(num_heads=3, kv_heads=1, head_dim=96), quantized=True)

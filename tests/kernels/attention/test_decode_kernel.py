"""The decode attention equals its reference, in the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from interpreted import InterpretedLauncher
from paged_cache import (
    Pages,
    Tables,
    angles,
    leave_behind,
    paired,
    random_factors,
    relative_error,
    usual_heads,
)

from zse.backends.torch.kept import turned
from zse.errors import UnsupportedModelError
from zse.kernels.attention.launch import (
    AttentionRules,
    DecodeWorkspace,
    attention_decode,
    attention_output_can_be_quantized,
    decode_counters_bytes,
    decode_partials_bytes,
    decode_splits,
)
from zse.kernels.attention.reference import TOLERANCE, attention
from zse.kernels.attention.wide import WideWorkspace, attention_decode_wide, takes_wide
from zse.kernels.layout import (
    PLAIN_PARTS,
    HeadInputs,
    HeadPart,
    HeadShape,
    PagedCache,
    Partials,
    Plain,
    Quantized,
)
from zse.kernels.norm.reference import dequantize
from zse.kernels.rope_store.reference import (
    INT8_CACHE_TOLERANCE,
    NARROW_CACHE_TOLERANCE,
    rope_store,
)

EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch: rows with so many tokens in the cache already."""

    positions: tuple[int, ...] = (70, 0, 33)
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 64
    splits: int = 2
    qkv_splits: int = 2
    window: int = 0
    softcap: float = 0.0
    quantized_cache: bool = False
    narrow_cache: bool = False
    quantized_output: bool = False
    bias: bool = False
    norm: bool = False
    launches: int = 1
    parts: tuple[HeadPart, ...] = PLAIN_PARTS
    rotary_dim: int | None = None
    value_epsilon: float = 0.0
    sinks: bool = False
    leaves: bool = False
    factors: bool = False
    wide: bool = False
    """Whether it is the launch for many rows over INT8 caches."""


def check(case: Case) -> None:
    """Launch over the same counters; compare outputs and what the cache holds."""
    torch.manual_seed(7)
    rows, dim, kv = len(case.positions), case.head_dim, case.kv_heads
    shape = HeadShape(num_heads=kv * case.group, kv_heads=kv, head_dim=dim, parts=case.parts)
    order = torch.randperm(sum(p // 32 + 1 for p in case.positions)).tolist()
    tables = Tables([[order.pop() for _ in range(p // 32 + 1)] for p in case.positions], stride=7)
    num_blocks = sum(map(len, tables.lists))
    pages = Pages(num_blocks + 1, kv, dim, quantized=case.quantized_cache, narrow=case.narrow_cache)
    stored_before = 0 if shape.stores else 1
    pasts = [torch.randn(2, position + stored_before, kv, dim) for position in case.positions]
    for blocks, past in zip(tables.lists, pasts, strict=True):
        pages.write(blocks, past[0], past[1])
    before = [pages.read(blocks, p) for blocks, p in zip(tables.lists, case.positions, strict=True)]
    seen = [max(0, p + 1 - case.window) if case.leaves else 0 for p in case.positions]
    leave_behind(pages, tables, seen)
    parts = torch.randn(case.qkv_splits, rows, shape.qkv_columns)
    bias = torch.randn(shape.qkv_columns) * 2
    norms = (torch.randn(dim), torch.randn(dim))
    turning = dim if case.rotary_dim is None else case.rotary_dim
    frequencies, table = angles(256, turning)
    sinks = torch.randn(shape.num_heads) * 3
    wide = random_factors(kv, dim, turning) if case.factors else torch.ones(kv, dim)
    positions = torch.tensor(case.positions, dtype=torch.int32)
    partials = torch.full((decode_partials_bytes(rows, shape, case.splits) // 4,), float("nan"))
    counters = torch.zeros(decode_counters_bytes(rows, shape) // 4, dtype=torch.int32)
    columns = shape.num_heads * dim
    plain = torch.zeros(rows, columns, dtype=torch.bfloat16)
    codes = torch.zeros(rows, columns, dtype=torch.int8)
    scales = torch.zeros(rows, -(-columns // 128))
    sums = torch.zeros_like(scales)
    launcher = InterpretedLauncher()
    inputs = HeadInputs(
        qkv=Partials(
            rows=rows, columns=shape.qkv_columns, splits=case.qkv_splits, values=parts.data_ptr()
        ),
        cosines_sines=table.data_ptr(),
        positions=positions.data_ptr(),
        bias=bias.data_ptr() if case.bias else 0,
        q_norm=norms[0].data_ptr() if case.norm else 0,
        k_norm=norms[1].data_ptr() if case.norm else 0,
        epsilon=EPSILON,
        rotary_dim=case.rotary_dim,
        value_epsilon=case.value_epsilon,
        key_factors=wide.data_ptr() if case.factors else 0,
    )  # fmt: skip
    output = (
        Quantized(
            rows=rows, columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr(),
            sums=sums.data_ptr(),
        )
        if case.quantized_output
        else Plain(rows=rows, columns=columns, values=plain.data_ptr())
    )  # fmt: skip
    rules = AttentionRules(
        window=case.window, softcap=case.softcap, sinks=sinks.data_ptr() if case.sinks else 0
    )
    for _ in range(case.launches):
        if case.wide:
            numbers = torch.arange(rows, dtype=torch.int32)
            workspace = WideWorkspace(queries=partials.data_ptr(), row_numbers=numbers.data_ptr())
            attention_decode_wide(
                launcher, inputs, shape, pages.cache, tables.tables, workspace, output,
                rules=rules, splits=case.splits,
            )  # fmt: skip
            continue
        attention_decode(
            launcher, inputs, shape, pages.cache, tables.tables,
            DecodeWorkspace(partials=partials.data_ptr(), counters=counters.data_ptr()), output,
            rules=rules, splits=case.splits,
        )  # fmt: skip
        assert not counters.any()
    total = parts.sum(0) + (bias if case.bias else 0)
    found = dequantize(codes, scales) if case.quantized_output else plain.float()
    limit = TOLERANCE
    if case.quantized_cache or case.quantized_output:
        limit = INT8_CACHE_TOLERANCE
    stored_limit = NARROW_CACHE_TOLERANCE if case.narrow_cache else limit
    order = paired(dim, turning)
    for row, position in enumerate(case.positions):
        flat = torch.zeros(position + 1, 2 * kv, dim)
        flat[:position] = before[row]
        joined = total[row].view(1, -1, dim)
        query = rope_store(
            usual_heads(joined, shape, case.value_epsilon), positions[row : row + 1].long(),
            frequencies, torch.tensor([position]), flat, shape.num_heads,
            (*norms, EPSILON) if case.norm else None,
        )  # fmt: skip
        query = query * wide.repeat_interleave(case.group, 0)
        flat[position, :kv] = (flat[position, :kv] / wide)[:, order]
        query = query[..., order]
        if case.narrow_cache:
            query = turned(query)
            flat[position, :kv] = turned(flat[position, :kv])
        stored = pages.read(tables.lists[row], position + 1)
        stored[: seen[row]] = before[row][: seen[row]]
        if shape.stores:
            assert relative_error(stored[position:], flat[position:]) <= stored_limit
        expected = attention(
            query, stored, torch.arange(position + 1), position, case.window or None,
            case.softcap, sinks if case.sinks else None,
        )  # fmt: skip
        if shape.is_gated:
            gates = joined[:, shape.num_heads : 2 * shape.num_heads].flatten(1)
            expected = expected * torch.sigmoid(gates)
        assert relative_error(found[row : row + 1], expected) <= limit


@pytest.mark.parametrize(
    ("head_dim", "group", "splits", "output"),
    [(64, 2, 2, False), (128, 9, 3, False), (128, 4, 1, True), (256, 1, 2, False)],
)
def test_a_cache_of_four_bits_is_written_and_read(
    head_dim: int, group: int, splits: int, output: bool
) -> None:
    check(
        Case(
            head_dim=head_dim,
            group=group,
            splits=splits,
            narrow_cache=True,
            norm=True,
            quantized_output=output,
            positions=(150, 0, 63),
        )
    )


@pytest.mark.parametrize("rotary_dim", [16, 64])
def test_heads_of_families_in_four_bits(rotary_dim: int) -> None:
    check(
        Case(
            narrow_cache=True,
            rotary_dim=rotary_dim,
            parts=("query", "gate", "key", "value"),
            sinks=True,
            window=50,
            leaves=True,
        )
    )


@pytest.mark.parametrize(("group", "splits"), [(1, 5), (2, 1), (7, 2)])
def test_any_number_of_splits_gives_the_reference(group: int, splits: int) -> None:
    check(Case(group=group, splits=splits))


def test_counters_are_left_at_zero_for_the_next_launch() -> None:
    check(Case(positions=(70,), kv_heads=1, splits=3, launches=2))


@pytest.mark.parametrize("position", [0, 31, 32, 159])
def test_every_place_of_the_new_token_in_its_block(position: int) -> None:
    check(Case(positions=(position,), kv_heads=1, splits=3))


@pytest.mark.parametrize("window", [1, 33, 40, 500])
def test_a_window_hides_what_is_before_it(window: int) -> None:
    check(Case(positions=(70,), kv_heads=1, window=window, splits=2))


@pytest.mark.parametrize("splits", [1, 2])
def test_blocks_that_a_window_has_left_behind_are_not_read(splits: int) -> None:
    positions = (100, 3, 133)
    check(Case(positions=positions, kv_heads=1, window=30, splits=splits, leaves=True))


@pytest.mark.parametrize(
    ("quantized", "bias", "norm"), [(False, True, False), (False, False, True), (True, True, True)]
)
def test_bias_and_head_norm_with_either_cache(quantized: bool, bias: bool, norm: bool) -> None:
    check(
        Case(
            positions=(40,),
            kv_heads=1,
            bias=bias,
            norm=norm,
            quantized_cache=quantized,
            qkv_splits=3,
        )
    )


@pytest.mark.parametrize("rotary_dim", [None, 32])
def test_the_new_key_is_divided_by_its_factors_and_queries_are_multiplied(
    rotary_dim: int | None,
) -> None:
    check(
        Case(
            positions=(40,), bias=True, quantized_cache=True, factors=True, rotary_dim=rotary_dim
        )
    )  # fmt: skip


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("head_dim", "group"), [(64, 2), (128, 7)])
def test_int8_output(head_dim: int, group: int, splits: int) -> None:
    check(
        Case(positions=(70,), head_dim=head_dim, group=group, splits=splits, quantized_output=True)
    )


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_scores_are_capped(softcap: float) -> None:
    check(Case(positions=(40,), kv_heads=1, head_dim=128, softcap=softcap))


@pytest.mark.parametrize(("head_dim", "group"), [(80, 1), (96, 3), (128, 12), (256, 2)])
def test_other_heads(head_dim: int, group: int) -> None:
    check(Case(positions=(70,), kv_heads=1, head_dim=head_dim, group=group, norm=True))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [0, 40])
def test_sinks_take_their_share_of_the_softmax(window: int, splits: int) -> None:
    check(Case(sinks=True, window=window, splits=splits, bias=True))


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("splits", [1, 3])
def test_the_output_is_gated(splits: int, quantized: bool) -> None:
    check(
        Case(
            positions=(70,), parts=("query", "gate", "key", "value"), splits=splits, norm=True,
            rotary_dim=16, bias=True, quantized_output=quantized, quantized_cache=quantized,
        )
    )  # fmt: skip


@pytest.mark.parametrize("rotary_dim", [0, 32, 96])
def test_some_columns_of_a_head_turn(rotary_dim: int) -> None:
    check(Case(positions=(70,), head_dim=128, group=9, rotary_dim=rotary_dim))


@pytest.mark.parametrize("quantized", [True, False])
def test_keys_are_the_values_too_and_values_have_a_norm(quantized: bool) -> None:
    check(
        Case(
            positions=(70,), head_dim=512, kv_heads=1, parts=("query", "key"), norm=True,
            rotary_dim=128, value_epsilon=1e-2, quantized_cache=quantized,
        )
    )  # fmt: skip


@pytest.mark.parametrize("splits", [1, 3])
def test_a_layer_may_read_what_another_has_stored(splits: int) -> None:
    positions = (70, 0, 31, 32, 63, 64)
    check(Case(positions=positions, parts=("query",), norm=True, splits=splits, window=40))


@pytest.mark.parametrize(
    ("window", "output", "factors", "norm"),
    [(0, True, False, False), (40, False, True, False), (33, True, False, True)],
)
def test_the_launch_for_many_rows_writes_the_new_key_and_attends_to_it(
    window: int, output: bool, factors: bool, norm: bool
) -> None:
    check(
        Case(
            positions=(70, 0, 133, 31, 32), head_dim=128, group=7, quantized_cache=True, wide=True,
            bias=True, norm=norm, factors=factors, window=window, leaves=window > 0,
            quantized_output=output, splits=1,
        )
    )  # fmt: skip


def test_the_launch_for_many_rows_takes_usual_heads_that_one_program_reads() -> None:
    shape = HeadShape(num_heads=16, kv_heads=2, head_dim=128)
    rounded = PagedCache(keys=16, values=16, key_scales=16, value_scales=16)
    plain = HeadInputs(
        qkv=Partials(rows=1, columns=shape.qkv_columns, splits=1, values=16), cosines_sines=16,
        positions=16,
    )  # fmt: skip
    usual: dict[str, Any] = {
        "inputs": plain, "shape": shape, "cache": rounded, "rules": AttentionRules(window=9),
        "target": "sm_90", "splits": 1,
    }  # fmt: skip
    assert takes_wide(**usual)
    assert takes_wide(**{**usual, "splits": 2})
    others: tuple[dict[str, Any], ...] = (
        {"target": "sm_80"},
        {"splits": 3},
        {"cache": PagedCache(keys=16, values=16)},
        {"cache": replace(rounded, is_narrow=True)},
        {"shape": replace(shape, head_dim=64)},
        {"shape": replace(shape, num_heads=18)},
        {"shape": replace(shape, parts=("query", "gate", "key", "value"))},
        {"rules": AttentionRules(softcap=3.0)},
        {"rules": AttentionRules(sinks=16)},
        {"inputs": replace(plain, rotary_dim=32)},
    )
    assert not [other for other in others if takes_wide(**{**usual, **other})]


def test_splits_fill_the_device_and_no_more() -> None:
    device = InterpretedLauncher().device
    assert decode_splits(1, 4, device) == 64
    assert decode_splits(1, 4, device, max_tokens=100) == 2
    assert decode_splits(32, 4, device) == 2
    assert decode_splits(256, 8, device) == 1
    assert decode_splits(8, 4, device, is_rounded=True) == 2 * decode_splits(8, 4, device) == 16
    assert decode_splits(1, 1, device, is_rounded=True) == 128


def test_int8_output_needs_whole_groups_of_columns() -> None:
    assert attention_output_can_be_quantized(HeadShape(num_heads=28, kv_heads=4, head_dim=128))
    assert not attention_output_can_be_quantized(HeadShape(num_heads=2, kv_heads=2, head_dim=64))
    with pytest.raises(UnsupportedModelError, match="1 heads of 64"):
        check(Case(group=1, quantized_output=True))


@pytest.mark.parametrize(
    "case",
    [
        Case(group=17),
        Case(head_dim=72),
        Case(head_dim=96, quantized_cache=True),
        Case(head_dim=96, softcap=3.0),
        Case(head_dim=96, sinks=True),
        Case(head_dim=512),
        Case(head_dim=64, group=9),
    ],
)
def test_heads_that_no_kernel_takes_are_refused(case: Case) -> None:
    with pytest.raises(UnsupportedModelError):
        check(case)

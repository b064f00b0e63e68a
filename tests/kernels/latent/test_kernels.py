"""Latent attention on a GPU is attention to keys and values that are made in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from interpreted import InterpretedLauncher
from paged_cache import Tables, angles, relative_error

from zse.device.facts_of_gpus import H200, L4
from zse.errors import UnsupportedModelError
from zse.kernels.attention.launch import PrefillTiles
from zse.kernels.attention.reference import TOLERANCE
from zse.kernels.attention.tiles import PrefillChunk, prefill_tiles
from zse.kernels.attention.variants import PREFILL_QUERIES
from zse.kernels.latent.launch import (
    LatentRows,
    check_latent,
    decode_partials_bytes,
    decode_splits,
    latent_decode,
    latent_prefill,
    latent_store,
    latent_values,
    query_norm,
    wide_queries,
)
from zse.kernels.latent.reference import latent_attention
from zse.kernels.latent.shape import LatentShape
from zse.kernels.layout import BLOCK_TOKENS, PagedCache, Partials, Plain, Quantized
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.norm.reference import dequantize
from zse.kernels.rope_store.reference import INT8_CACHE_TOLERANCE, rotate

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts

EPSILON, SPLITS, SCALE = 1e-6, 2, 0.07
ELEMENTS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences of which the last rows attend: one of each, or chunks of prompts."""

    chunks: tuple[tuple[int, int], ...]
    """First position and rows of each."""
    heads: int = 2
    splits: int = 1
    element: str = "bf16"
    quantized_cache: bool = False
    quantized_output: bool = False
    bias: bool = False
    device: DeviceFacts = H200


class Model:
    """Random numbers of a layer, and a cache that nobody wrote to."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(case.heads)
        self.case = case
        self.shape = LatentShape(
            num_heads=case.heads, rank=512, turning=64, key_dim=128, value_dim=128
        )
        shape = self.shape
        self.lengths = [first + count for first, count in case.chunks]
        self.joined = [torch.randn(SPLITS, n, shape.joined_columns) for n in self.lengths]
        self.bias = torch.randn(shape.joined_columns) * float(case.bias)
        self.norm = torch.randn(512) * 0.1 + 1
        made = torch.randn(case.heads, 256, 512) * 512**-0.5
        self.expansion = made.to(ELEMENTS[case.element])
        self.frequencies, self.angles = angles(512, 64)
        blocks = [-(-length // BLOCK_TOKENS) for length in self.lengths]
        order = torch.randperm(sum(blocks)).tolist()
        self.tables = Tables([[order.pop() for _ in range(n)] for n in blocks], stride=7)
        kind = torch.int8 if case.quantized_cache else torch.bfloat16
        self.keys = torch.full((sum(blocks), BLOCK_TOKENS, 576), 127 if kind.itemsize == 1 else 1e4)
        self.keys = self.keys.to(kind)
        self.scales = torch.full((sum(blocks), BLOCK_TOKENS, 18), 9e3, dtype=torch.float16)
        self.cache = PagedCache(
            keys=self.keys.data_ptr(),
            values=0,
            key_scales=self.scales.data_ptr() if case.quantized_cache else 0,
        )
        self.launcher = InterpretedLauncher(case.device)
        self.kept: list[torch.Tensor] = []

    @property
    def matrix(self) -> LinearWeight:
        return LinearWeight(
            scheme=self.case.element, rows=256 * self.case.heads, columns=512,
            weights=self.expansion.data_ptr(),
        )  # fmt: skip

    def rows(self, positions: list[int], sequences: list[int] | None = None) -> LatentRows:
        self.kept.append(torch.tensor(positions, dtype=torch.int32))
        self.kept.append(torch.tensor(sequences or [0], dtype=torch.int32))
        return LatentRows(
            count=len(positions),
            cosines_sines=self.angles.data_ptr(),
            positions=self.kept[-2].data_ptr(),
            table_rows=self.kept[-1].data_ptr() if sequences else 0,
        )

    def keep(self, sequences: list[int] | None = None) -> LatentRows:
        """Have the chunks' tokens kept, those before them by torch; return their rows."""
        for index, (first, _) in enumerate(self.case.chunks):
            self._keep_before(index, first)
        positions = [first + i for first, count in self.case.chunks for i in range(count)]
        rows = self.rows(positions, sequences)
        latent_store(
            self.launcher, self.shape, summands(self._own), rows, self.cache, self.tables.tables,
            norm_address=self.norm.data_ptr(), epsilon=EPSILON,
            bias_address=self.bias.data_ptr() if self.case.bias else 0,
        )  # fmt: skip
        return rows

    def _keep_before(self, index: int, count: int) -> None:
        kept = self.joined[index].sum(0)[:count, self.shape.own_columns :] + self.bias[-576:]
        kept[:, :512] = self.normed(kept[:, :512])
        kept[:, 512:] = rotate(kept[:, None, 512:], torch.arange(count), self.frequencies)[:, 0]
        groups = kept.unflatten(1, (18, 32))
        scales = (groups.abs().amax(-1) / 127).half()
        codes = torch.round(groups / scales.float().unsqueeze(-1)).flatten(1)
        for first in range(0, count, BLOCK_TOKENS):
            block, part = self.tables.lists[index][first // BLOCK_TOKENS], slice(first, first + 32)
            size = len(kept[part])
            source = codes if self.case.quantized_cache else kept
            self.keys[block, :size] = source[part].to(self.keys.dtype)
            self.scales[block, :size] = scales[part]

    def normed(self, latents: torch.Tensor) -> torch.Tensor:
        mean = latents.square().mean(-1, keepdim=True)
        return latents / (mean + EPSILON).sqrt() * self.norm

    @property
    def _own(self) -> torch.Tensor:
        """Summands of the rows of all chunks."""
        chunks = zip(self.joined, self.case.chunks, strict=True)
        self.kept.append(torch.cat([joined[:, first:] for joined, (first, _) in chunks], 1))
        return self.kept[-1]

    def queries(self, rows: LatentRows) -> torch.Tensor:
        """Return the wide queries of the chunks' rows, bfloat16."""
        wide = torch.full((rows.count, self.case.heads, 576), float("nan"), dtype=torch.bfloat16)
        wide_queries(
            self.launcher, self.shape, summands(self._own), rows, self.matrix, wide.data_ptr(),
            bias_address=self.bias.data_ptr() if self.case.bias else 0,
        )  # fmt: skip
        return wide

    def values(self, attended: torch.Tensor) -> torch.Tensor:
        rows, columns = len(attended), self.shape.value_columns
        plain = torch.zeros(rows, columns, dtype=torch.bfloat16)
        codes = torch.zeros(rows, columns, dtype=torch.int8)
        scales = torch.zeros(rows, columns // 128)
        sums = torch.zeros_like(scales)
        output: Plain | Quantized = Plain(rows=rows, columns=columns, values=plain.data_ptr())
        if self.case.quantized_output:
            output = Quantized(
                rows=rows, columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr(),
                sums=sums.data_ptr(),
            )  # fmt: skip
        latent_values(self.launcher, self.shape, attended.data_ptr(), self.matrix, output)
        return dequantize(codes, scales) if self.case.quantized_output else plain.float()

    def expected(self) -> torch.Tensor:
        found = []
        own = self.shape.own_columns
        for joined, (first, _) in zip(self.joined, self.case.chunks, strict=True):
            rows = joined.sum(0) + self.bias
            found.append(
                latent_attention(
                    rows[first:, :own].view(-1, self.case.heads, 192),
                    self.normed(rows[:, own : own + 512]),
                    rows[:, -64:],
                    self.expansion,
                    self.frequencies,
                    SCALE,
                )
            )
        return torch.cat(found).flatten(1)

    def tolerance(self) -> float:
        rounded = self.case.quantized_cache or self.case.quantized_output
        return INT8_CACHE_TOLERANCE if rounded else TOLERANCE


def summands(values: torch.Tensor) -> Partials:
    assert values.is_contiguous()
    return Partials(
        rows=values.shape[1], columns=values.shape[2], splits=len(values), values=values.data_ptr()
    )


def check_decode(case: Case) -> None:
    model = Model(case)
    rows = model.keep()
    wide = model.queries(rows)
    size = decode_partials_bytes(rows.count, model.shape, case.splits) // 4
    partials = torch.full((max(size, 1),), float("nan"))
    latent_decode(
        model.launcher, model.shape, wide.data_ptr(), rows, model.cache, model.tables.tables,
        scale=SCALE, splits=case.splits, partials_address=partials.data_ptr(),
    )  # fmt: skip
    assert relative_error(model.values(wide), model.expected()) <= model.tolerance()


def check_prefill(case: Case) -> None:
    model = Model(case)
    wide = model.queries(model.keep([i for i, (_, n) in enumerate(case.chunks) for _ in range(n)]))
    chunks, first_row = [], 0
    for row, (first, count) in enumerate(case.chunks):
        chunks.append(
            PrefillChunk(first_row=first_row, num_rows=count, table_row=row, first_position=first)
        )
        first_row += count
    lists = prefill_tiles(chunks, PREFILL_QUERIES)
    arrays = [
        torch.tensor(entries, dtype=torch.int32)
        for entries in (lists.first_rows, lists.num_rows, lists.table_rows, lists.first_positions)
    ]
    first_rows, num_rows, table_rows, first_positions = (each.data_ptr() for each in arrays)
    latent_prefill(
        model.launcher, model.shape, wide.data_ptr(), model.cache, model.tables.tables,
        PrefillTiles(
            count=len(lists.num_rows), first_rows=first_rows, num_rows=num_rows,
            table_rows=table_rows, first_positions=first_positions,
        ),
        scale=SCALE,
    )  # fmt: skip
    assert relative_error(model.values(wide), model.expected()) <= model.tolerance()


@pytest.mark.parametrize(("splits", "quantized"), [(1, True), (3, False)])
def test_a_token_attends_to_all_before_it(splits: int, quantized: bool) -> None:
    check_decode(
        Case(chunks=((70, 1), (0, 1)), splits=splits, quantized_cache=quantized, bias=True)
    )


@pytest.mark.parametrize(("heads", "device"), [(20, H200), (33, L4)])
def test_heads_are_shared_out_among_programs(heads: int, device: DeviceFacts) -> None:
    model = Model(Case(chunks=((33, 1),), heads=heads, device=device))
    rows = model.keep()
    wide = (torch.randn(1, heads, 576) * 0.5).bfloat16()
    kept = model.keys[model.tables.lists[0]].flatten(0, 1)[:34].float()
    expected = torch.softmax(wide[0].float() @ kept.T * SCALE, -1) @ kept[:, :512]
    partials = torch.full((decode_partials_bytes(1, model.shape, 2) // 4,), float("nan"))
    latent_decode(
        model.launcher, model.shape, wide.data_ptr(), rows, model.cache, model.tables.tables,
        scale=SCALE, splits=2, partials_address=partials.data_ptr(),
    )  # fmt: skip
    assert relative_error(wide[0, :, :512], expected) <= TOLERANCE


@pytest.mark.parametrize("rows", [2, 17])
def test_values_can_be_8_bit_activations(rows: int) -> None:
    check_decode(Case(chunks=((3, 1),) * rows, heads=1, quantized_output=True))


def test_matrices_of_heads_may_be_float16() -> None:
    check_decode(Case(chunks=((5, 1),), element="fp16"))


@pytest.mark.parametrize(
    ("chunks", "quantized"),
    [(((0, 35),), False), (((37, 2), (0, 3)), False), (((40, 2), (0, 1)), True)],
)
def test_chunks_with_and_without_a_prefix(
    chunks: tuple[tuple[int, int], ...], quantized: bool
) -> None:
    check_prefill(Case(chunks=chunks, quantized_cache=quantized))


def test_the_form_for_little_shared_memory_gives_the_same() -> None:
    check_prefill(Case(chunks=((30, 9),), heads=5, device=L4))


@pytest.mark.parametrize("quantized", [False, True])
def test_latents_of_queries_are_normed(quantized: bool) -> None:
    torch.manual_seed(1)
    shape = LatentShape(
        num_heads=2, rank=512, turning=64, key_dim=128, value_dim=128, query_rank=256
    )
    joined, bias = torch.randn(SPLITS, 5, shape.joined_columns), torch.randn(shape.joined_columns)
    norm = torch.randn(256)
    plain = torch.zeros(3, 256, dtype=torch.bfloat16)
    codes, scales = torch.zeros(3, 256, dtype=torch.int8), torch.zeros(3, 2)
    sums = torch.zeros(3, 2)
    output: Plain | Quantized = Plain(rows=3, columns=256, values=plain.data_ptr())
    if quantized:
        output = Quantized(
            rows=3, columns=256, codes=codes.data_ptr(), scales=scales.data_ptr(),
            sums=sums.data_ptr(),
        )  # fmt: skip
    query_norm(
        InterpretedLauncher(), shape, summands(joined).part(1, 3), output,
        norm_address=norm.data_ptr(), epsilon=EPSILON, bias_address=bias.data_ptr(),
    )  # fmt: skip
    values = (joined.sum(0) + bias)[1:4, :256]
    expected = values / (values.square().mean(-1, keepdim=True) + EPSILON).sqrt() * norm
    found = dequantize(codes, scales) if quantized else plain
    assert relative_error(found, expected) <= TOLERANCE


def test_a_sequence_is_split_as_far_as_there_are_programs_and_tokens() -> None:
    few = LatentShape(num_heads=16, rank=512, turning=64, key_dim=128, value_dim=128)
    many = LatentShape(num_heads=128, rank=512, turning=64, key_dim=128, value_dim=128)
    assert decode_splits(1, few, H200, 100_000) == 64
    assert decode_splits(1, few, H200, 100) == 4
    assert decode_splits(8, few, H200, 100_000) == 16
    assert decode_splits(8, many, H200, 100_000) == 8
    assert decode_splits(500, many, H200, 100_000) == 1
    assert decode_partials_bytes(3, few, 1) == 0


@pytest.mark.parametrize(
    "widths",
    [{"rank": 256}, {"turning": 32}, {"key_dim": 192}, {"value_dim": 64}, {"query_rank": 4096}],
)
def test_widths_that_no_kernel_takes_are_refused(widths: dict[str, int]) -> None:
    usual = {"rank": 512, "turning": 64, "key_dim": 128, "value_dim": 128}
    check_latent(LatentShape(num_heads=2, **usual))
    with pytest.raises(UnsupportedModelError, match="expected"):
        check_latent(LatentShape(num_heads=2, **{**usual, **widths}))

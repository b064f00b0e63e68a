"""Programs of one operation for the processor's kernels: all but products of matrices."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from zse.backends.resident import KV_SCALE_COLUMNS as SCALE_COLUMNS
from zse.backends.torch.kept import packed, unpacked
from zse.kernels.native.codes import ATTENTION_PARTS, CacheDtype, Kind, Register
from zse.kernels.native.library import load, runnable
from zse.kernels.native.structs import Attention, Cache, Norm, Operation, Rows, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zse.kernels.native.library import Pool

INSTRUCTIONS = [one.name for one in runnable()]
CACHE_DTYPES = {
    CacheDtype.FP32: torch.float32,
    CacheDtype.FP16: torch.float16,
    CacheDtype.BF16: torch.bfloat16,
    CacheDtype.INT8: torch.int8,
    CacheDtype.INT4: torch.uint8,
}


@contextmanager
def started_pool(instructions: str, num_threads: int = 1) -> Iterator[Pool]:
    """Give threads that run the library for ``instructions``."""
    pool = load(instructions).start_pool(num_threads)
    try:
        yield pool
    finally:
        pool.close()


def run_operation(
    pool: Pool, operation: Operation, step: Step, registers: Mapping[Register, torch.Tensor]
) -> None:
    """Run one operation over tensors, which it changes in place."""
    for register, values in registers.items():
        assert values.is_contiguous()
        step.registers[register] = values.data_ptr()
    pool.library.run(pool.handle, operation, 1, step)


def native_norm(
    weight: torch.Tensor,
    epsilon: float,
    *,
    bias: torch.Tensor | None = None,
    subtracts_mean: bool = False,
) -> Norm:
    """Return a norm that reads ``weight`` and ``bias`` where they lie."""
    return Norm(
        weight=weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        epsilon=epsilon,
        subtracts_mean=subtracts_mean,
    )


class PagedCache:
    """One layer's keys and values in blocks, and the float32 numbers that they stand for.

    A token has ``rows`` of each KV head: a key and a value, or what is both.
    """

    def __init__(
        self,
        dtype: CacheDtype,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        *,
        rows: int = 2,
    ) -> None:
        self.dtype = dtype
        self.shape = (num_blocks, block_size, rows * kv_heads, head_dim)
        width = head_dim // 2 if dtype == CacheDtype.INT4 else head_dim
        item_bytes = CACHE_DTYPES[dtype].itemsize
        self._numbers_bytes = block_size * rows * kv_heads * width * item_bytes
        self._groups = -(-head_dim // SCALE_COLUMNS)
        scales_bytes = 0
        if dtype in (CacheDtype.INT8, CacheDtype.INT4):
            scales_bytes = block_size * rows * kv_heads * self._groups * 2
        self.data = torch.zeros(num_blocks, self._numbers_bytes + scales_bytes, dtype=torch.uint8)

    def native(self) -> Cache:
        return Cache(
            data=self.data.data_ptr(),
            block_bytes=self.data.shape[1],
            block_size=self.shape[1],
            dtype=self.dtype,
        )

    def numbers(self) -> torch.Tensor:
        """Return what is kept, as float32 [slots, rows * kv_heads, head_dim]."""
        kept = self.data[:, : self._numbers_bytes].contiguous().view(CACHE_DTYPES[self.dtype])
        if self.dtype == CacheDtype.INT4:
            codes = kept.view(*self.shape[:3], -1)
            narrow = self.data[:, self._numbers_bytes :].reshape(*self.shape[:3], -1)
            return unpacked(codes, narrow).view(-1, *self.shape[2:])
        values = kept.view(self.shape).float()
        if self.dtype == CacheDtype.INT8:
            scales = self.data[:, self._numbers_bytes :].contiguous().view(torch.float16)
            wide = scales.view(*self.shape[:3], self._groups).float()
            values = values * wide.repeat_interleave(SCALE_COLUMNS, -1)[..., : self.shape[3]]
        return values.view(-1, *self.shape[2:])

    def fill(self, generator: torch.Generator) -> None:
        """Keep random numbers."""
        values = torch.randn(self.shape, generator=generator)
        if self.dtype == CacheDtype.INT4:
            codes, narrow = packed(values)
            self.data[:] = torch.cat((codes.flatten(1), narrow.flatten(1)), 1)
            return
        if self.dtype == CacheDtype.INT8:
            padded = functional.pad(values, (0, self._groups * SCALE_COLUMNS - self.shape[3]))
            grouped = padded.unflatten(-1, (self._groups, SCALE_COLUMNS))
            scales = (grouped.abs().amax(-1) / 127).half()
            wide = scales.float().repeat_interleave(SCALE_COLUMNS, -1)[..., : self.shape[3]]
            codes = (values / wide).round().clamp(-127, 127).to(torch.int8)
            self.data[:, : self._numbers_bytes] = codes.view(torch.uint8).flatten(1)
            self.data[:, self._numbers_bytes :] = scales.flatten(1).view(torch.uint8)
        else:
            kept = values.to(CACHE_DTYPES[self.dtype]).flatten(1)
            self.data[:] = kept.view(torch.uint8)


def native_attention(
    num_heads: int, num_kv_heads: int, head_dim: int, **fields: Any
) -> tuple[Attention, list[object]]:
    """Return what attention is, and what must stay alive as long; norms and sinks are tensors."""
    kept: list[object] = []
    for name in ("q_norm", "k_norm"):
        if (norm := fields.get(name)) is not None:
            kept.append(norm)
            fields[name] = ctypes.pointer(norm)
    if (sinks := fields.get("sinks")) is not None:
        kept.append(sinks)
        fields["sinks"] = sinks.data_ptr()
    defaults = {"scale": head_dim**-0.5, "rotary": Register.ROTARY}
    attention = Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        **{**defaults, **fields},
    )
    return attention, kept


class Chunk:
    """Consecutive rows of one sequence and its block table."""

    def __init__(self, num_rows: int, start_position: int, blocks: Sequence[int]) -> None:
        self.num_rows = num_rows
        self.start_position = start_position
        self.blocks = torch.tensor(blocks, dtype=torch.int32)

    def slots(self, block_size: int) -> torch.Tensor:
        """Return the slot of every position up to the chunk's end, int64."""
        positions = torch.arange(self.start_position + self.num_rows)
        return self.blocks[positions // block_size].long() * block_size + positions % block_size


def attend(
    pool: Pool,
    query: torch.Tensor,
    cache: PagedCache,
    attention: Attention,
    chunks: Sequence[Chunk],
) -> torch.Tensor:
    """Return attention of the rows of all chunks, float32 [rows, heads * head_dim].

    Args:
        query: float32 [rows, heads + 2 * kv_heads, head_dim].
    """
    rows = (Rows * len(chunks))()
    first_row = 0
    for one, chunk in zip(rows, chunks, strict=True):
        one.first_row, one.num_rows = first_row, chunk.num_rows
        one.start_position, one.blocks = chunk.start_position, chunk.blocks.data_ptr()
        first_row += chunk.num_rows
    heads, head_dim = attention.num_heads, attention.head_dim
    caches = (Cache * 1)(cache.native())
    step = Step(rows=first_row, num_chunks=len(chunks), chunks=rows, caches=caches)
    operation = Operation(kind=Kind.ATTEND, input=Register.QKV, output=Register.MIXED)
    operation.attention = ctypes.pointer(attention)
    mixed = torch.full((first_row, heads * head_dim), float("nan"))
    arrived = torch.zeros(len(chunks), attention.num_kv_heads, dtype=torch.int32)
    registers = {
        Register.QKV: query,
        Register.MIXED: mixed,
        Register.PARTIAL: torch.full(
            (len(chunks), ATTENTION_PARTS, heads, head_dim + 2), float("nan")
        ),
        Register.ARRIVED: arrived,
    }
    run_operation(pool, operation, step, registers)
    assert not arrived.any()
    return mixed

"""Attention and sampling of one step, for `cpu_kernels.py`: the operations that are no products."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from zse.kernels.native.codes import ATTENTION_PARTS, CacheDtype, Kind, Register
from zse.kernels.native.structs import Attention, Cache, Operation, Rows, Sampling, Step

if TYPE_CHECKING:
    from zse.kernels.native.library import Pool

BLOCK_SIZE = 16
MOST_SINGLE_ROWS = 8
"""More rows than these are the end of one prompt; fewer are a token each of so many sequences."""


class Attending:
    """The attention of all layers over fp16 keys and values, each layer's its own.

    Args:
        heads: Of queries, of keys and values, and their columns.
        keys: Tokens that each sequence has behind it, its own included.
    """

    def __init__(self, heads: tuple[int, int, int], rows: int, *, keys: int, layers: int) -> None:
        num_heads, kv_heads, head_dim = heads
        is_prompt = rows > MOST_SINGLE_ROWS
        num_chunks = 1 if is_prompt else rows
        num_blocks = -(-max(keys, rows) // BLOCK_SIZE)
        slots = layers * num_chunks * num_blocks * BLOCK_SIZE
        self._cache = torch.randn(slots, 2 * kv_heads, head_dim).half()
        self._query = torch.randn(rows, (num_heads + 2 * kv_heads) * head_dim)
        self._mixed = torch.empty(rows, num_heads * head_dim)
        self._partial = torch.empty(num_chunks, ATTENTION_PARTS, num_heads, head_dim + 2)
        self._arrived = torch.zeros(num_chunks, kv_heads, dtype=torch.int32)
        self._blocks = torch.arange(num_chunks * num_blocks, dtype=torch.int32)
        self.bytes_read = self._cache.nbytes
        block_bytes = BLOCK_SIZE * 2 * kv_heads * head_dim * 2
        self._caches = (Cache * layers)(
            *(
                Cache(
                    data=self._cache.data_ptr() + layer * num_chunks * num_blocks * block_bytes,
                    block_bytes=block_bytes,
                    block_size=BLOCK_SIZE,
                    dtype=CacheDtype.FP16,
                )
                for layer in range(layers)
            )
        )
        length = rows if is_prompt else 1
        self._chunks = (Rows * num_chunks)(
            *(
                Rows(
                    first_row=chunk,
                    num_rows=length,
                    start_position=max(keys, rows) - length,
                    blocks=self._blocks.data_ptr() + chunk * num_blocks * 4,
                )
                for chunk in range(num_chunks)
            )
        )
        self._attention = Attention(
            num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5
        )
        self._step = Step(
            rows=rows,
            single_rows=0 if is_prompt else rows,
            num_chunks=num_chunks,
            chunks=self._chunks,
            caches=self._caches,
        )
        for register, tensor in (
            (Register.QKV, self._query),
            (Register.MIXED, self._mixed),
            (Register.PARTIAL, self._partial),
            (Register.ARRIVED, self._arrived),
        ):
            self._step.registers[register] = tensor.data_ptr()
        self._operations = self._record(layers)

    def _record(self, layers: int) -> ctypes.Array[Operation]:
        """Return the list that a step walks: attention alone, layer by layer."""
        operations = (Operation * layers)(
            *(
                Operation(kind=Kind.ATTEND, layer=layer, input=Register.QKV, output=Register.MIXED)
                for layer in range(layers)
            )
        )
        for operation in operations:
            operation.attention = ctypes.pointer(self._attention)
        return operations

    def run(self, pool: Pool) -> None:
        pool.library.run(pool.handle, self._operations, len(self._operations), self._step)


class Choosing:
    """A token for each row, from logits of a vocabulary: the likeliest, or one of the nucleus."""

    def __init__(self, vocabulary: int, rows: int, *, is_greedy: bool) -> None:
        self._logits = torch.randn(rows, vocabulary) * 3
        self.bytes_read = self._logits.nbytes
        row = Sampling(
            temperature=0.0 if is_greedy else 0.8,
            top_p=1.0 if is_greedy else 0.95,
            top_k=0 if is_greedy else 50,
            draw=0.5,
            known_token=-1,
            num_logprobs=-1,
        )
        self._sampling = (Sampling * rows)(*([row] * rows))
        self._step = Step(rows=rows, num_wanted=rows, sampling=self._sampling)
        self._step.registers[Register.LOGITS] = self._logits.data_ptr()
        self._operations = (Operation * 1)(
            Operation(kind=Kind.SAMPLE, input=Register.LOGITS, width=vocabulary)
        )

    def run(self, pool: Pool) -> None:
        pool.library.run(pool.handle, self._operations, 1, self._step)

"""Attention over the pairs that a pattern names, and what it saves.

On a GPU with Triton, in 16 bits, one kernel walks the blocks and keeps no scores; elsewhere, and
where gradients are wanted, torch does the same block by block.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from zse.errors import UsageError
from zse.records import record
from zse.sparse.blockwise import attend_blockwise
from zse.sparse.masks import BlockMask, block_mask, count_pairs

if TYPE_CHECKING:
    from zse.sparse.pattern import SparsePattern

_MOST_MASKS = 8
"""Masks of so many lengths are kept."""
_MIB = 1 << 20


@record
class SparseAttentionConfig:
    """Heads and the pattern.

    Args:
        num_heads: Heads of queries.
        head_dim: Columns of a head.
        num_kv_heads: Heads of keys and values, each for as many of queries; by default as many.
        is_causal: Whether no token sees a later one.
        scale: Multiplies products; by default one over the root of ``head_dim``.
    """

    num_heads: int
    head_dim: int
    pattern: SparsePattern
    num_kv_heads: int | None = None
    is_causal: bool = True
    scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", hint="Use 1 or more.")
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise UsageError(
                f"{self.num_heads} heads cannot share {self.num_kv_heads} of keys and values",
                hint="num_kv_heads divides num_heads.",
            )

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def factor(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale


class SparseAttention:
    """Attention of one pattern: call it with queries, keys and values."""

    def __init__(self, config: SparseAttentionConfig) -> None:
        self.config = config
        self._mask = lru_cache(_MOST_MASKS)(self._make_mask)

    def _make_mask(self, length: int, device: str) -> BlockMask:
        config = self.config
        return block_mask(config.pattern, length, is_causal=config.is_causal, device=device)

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return what is attended to, of the shape and type of ``query``.

        Args:
            query: [batch, num_heads, length, head_dim].
            key: [batch, num_kv_heads, length, head_dim].
            value: As ``key``.

        Raises:
            UsageError: A shape, type or device is another.
        """
        self._check(query, key, value)
        mask = self._mask(query.shape[2], str(query.device))
        if takes_kernel(query, key, value):
            from zse.kernels.sparse.triton.attend import Rules, attend

            rules = Rules(
                window=mask.pattern.window_size,
                num_global=mask.pattern.num_global_start,
                is_causal=mask.is_causal,
                scale=self.config.factor,
            )
            blocks = (mask.row_starts, mask.masked_starts, mask.columns, mask.kinds)
            return attend(query, key, value, blocks, mask.pattern.block_size, rules)
        return attend_blockwise(query, key, value, mask, self.config.factor)

    def _check(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        config = self.config
        batch, length = (query.shape[0], query.shape[2]) if query.dim() == 4 else (0, 0)
        wanted = {
            "query": (query, (batch, config.num_heads, length, config.head_dim)),
            "key": (key, (batch, config.kv_heads, length, config.head_dim)),
            "value": (value, (batch, config.kv_heads, length, config.head_dim)),
        }
        for name, (tensor, shape) in wanted.items():
            if tuple(tensor.shape) != shape or not batch or not length:
                raise UsageError(
                    f"{name} is {list(tensor.shape)}",
                    hint=f"It is to be [batch, {shape[1]}, length, {shape[3]}] as the others are.",
                )
            if (tensor.dtype, tensor.device) != (query.dtype, query.device):
                raise UsageError(
                    f"{name} is {tensor.dtype} on {tensor.device}, "
                    f"query {query.dtype} on {query.device}",
                    hint="Move them to one type and device.",
                )
        if not query.is_floating_point():
            raise UsageError(f"query is {query.dtype}", hint="Use a floating-point type.")

    def get_memory_estimate(self, seq_len: int, *, element_bytes: int = 2) -> dict[str, float]:
        """Return what one head's scores take where an implementation stores them, in MiB.

        The kernels here store none; it is the work and the memory that a pattern saves others.

        Args:
            seq_len: Tokens of the text.
            element_bytes: Of a score; 2: fp16.

        Returns:
            ``full_attention_mb`` of all pairs, ``sparse_attention_mb`` of those that are seen, and
            ``reduction_factor``, the one over the other.
        """
        pairs = count_pairs(self._mask(seq_len, "cpu"))
        return {
            "full_attention_mb": seq_len**2 * element_bytes / _MIB,
            "sparse_attention_mb": pairs * element_bytes / _MIB,
            "reduction_factor": seq_len**2 / pairs,
        }


def takes_kernel(*tensors: torch.Tensor) -> bool:
    """Whether the Triton kernel takes these: on a GPU, in 16 bits, no gradient wanted."""
    return (
        all(one.is_cuda and one.dtype in (torch.bfloat16, torch.float16) for one in tensors)
        and not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors))
        and find_spec("triton") is not None
    )


zSparseAttention = SparseAttention  # noqa: N816 - the name it is known by

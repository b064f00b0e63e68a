"""zSparse: attention that looks at a part of a long text, as a function of torch tensors."""

from __future__ import annotations

from zse.sparse.attention import SparseAttention, SparseAttentionConfig, zSparseAttention
from zse.sparse.masks import BlockMask, block_mask, coo_mask, dense_mask
from zse.sparse.pattern import SparsePattern

__all__ = [
    "BlockMask",
    "SparseAttention",
    "SparseAttentionConfig",
    "SparsePattern",
    "block_mask",
    "coo_mask",
    "dense_mask",
    "zSparseAttention",
]

"""``zse.sparse`` by the import path that programs know from elsewhere."""

from __future__ import annotations

from zse.sparse import SparseAttentionConfig, SparsePattern, zSparseAttention

__all__ = ["SparseAttentionConfig", "SparsePattern", "zSparseAttention"]

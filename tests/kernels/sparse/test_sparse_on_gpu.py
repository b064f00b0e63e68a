"""On a GPU the kernel is taken, and equals the reference."""

from __future__ import annotations

import pytest
import torch

from zse.kernels.sparse.reference import sparse_attention
from zse.sparse import (
    SparseAttentionConfig,
    SparsePattern,
    block_mask,
    dense_mask,
    zSparseAttention,
)
from zse.sparse.attention import takes_kernel

pytestmark = pytest.mark.gpu
LENGTH, HEADS, KV_HEADS = 1000, 8, 2
PATTERNS = (
    SparsePattern.sliding_window(200),
    SparsePattern.longformer(200, 70, block_size=128),
    SparsePattern.bigbird(100, 128),
    SparsePattern.block_sparse(32, 4),
)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_the_kernel_equals_the_reference(pattern, is_causal, head_dim):
    torch.manual_seed(2)
    query = torch.randn(2, HEADS, LENGTH, head_dim, device="cuda", dtype=torch.bfloat16)
    key, value = (torch.randn_like(query[:, :KV_HEADS]) for _ in range(2))
    config = SparseAttentionConfig(
        num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=head_dim, pattern=pattern,
        is_causal=is_causal,
    )  # fmt: skip
    assert takes_kernel(query, key, value)
    found = zSparseAttention(config)(query, key, value)
    seen = dense_mask(block_mask(pattern, LENGTH, is_causal=is_causal, device="cuda"))
    wanted = sparse_attention(query, key, value, seen, config.factor)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)

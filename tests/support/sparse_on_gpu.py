"""Compare sparse attention's compiled kernel with the reference: ``sparse_on_gpu.py PATTERN``.

A program of its own, since tests import triton as an interpreter.
"""

from __future__ import annotations

import itertools
import sys

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

LENGTH, HEADS, KV_HEADS = 1000, 8, 2
PATTERNS = {
    "sliding_window": SparsePattern.sliding_window(200),
    "longformer": SparsePattern.longformer(200, 70, block_size=128),
    "bigbird": SparsePattern.bigbird(100, 128),
    "block_sparse": SparsePattern.block_sparse(32, 4),
}


def compare(pattern: SparsePattern, head_dim: int, *, is_causal: bool) -> None:
    """Raise AssertionError where the kernel is not taken or differs."""
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


if __name__ == "__main__":
    for head_dim, is_causal in itertools.product((64, 80, 128), (True, False)):
        compare(PATTERNS[sys.argv[1]], head_dim, is_causal=is_causal)

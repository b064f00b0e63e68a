"""Sparse attention is dense attention of which the other pairs are left out."""

from __future__ import annotations

import pytest
import torch

from zse.errors import UsageError
from zse.kernels.sparse.reference import sparse_attention
from zse.sparse import (
    SparseAttentionConfig,
    SparsePattern,
    block_mask,
    dense_mask,
    zSparseAttention,
)

HEADS, KV_HEADS, HEAD_DIM, LENGTH = 4, 2, 24, 90
PATTERNS = (
    SparsePattern.sliding_window(20, block_size=16),
    SparsePattern.longformer(20, 3, block_size=16),
    SparsePattern.bigbird(20, 16, block_size=16),
    SparsePattern.block_sparse(16, 3),
)


def make(pattern, **options):
    config = SparseAttentionConfig(
        num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, pattern=pattern, **options
    )
    return zSparseAttention(config=config)


def inputs(length=LENGTH, dtype=torch.float32):
    torch.manual_seed(length)
    query = torch.randn(2, HEADS, length, HEAD_DIM, dtype=dtype)
    key, value = torch.randn(2, 2, KV_HEADS, length, HEAD_DIM, dtype=dtype)
    return query, key, value


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_it_equals_the_reference(pattern, is_causal):
    query, key, value = inputs()
    found = make(pattern, is_causal=is_causal)(query, key, value)
    seen = dense_mask(block_mask(pattern, LENGTH, is_causal=is_causal))
    wanted = sparse_attention(query, key, value, seen, HEAD_DIM**-0.5)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_window_as_wide_as_the_text_is_torchs_attention():
    query, key, value = inputs()
    found = make(SparsePattern.sliding_window(LENGTH), scale=0.3)(query, key, value)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_sixteen_bits_come_back_as_sixteen_bits():
    query, key, value = inputs(dtype=torch.bfloat16)
    found = make(PATTERNS[0])(query, key, value)
    seen = dense_mask(block_mask(PATTERNS[0], LENGTH))
    wanted = sparse_attention(query, key, value, seen, HEAD_DIM**-0.5)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)


def test_gradients_reach_queries_keys_and_values():
    parts = [one.requires_grad_() for one in inputs(40)]
    make(PATTERNS[1])(*parts).square().sum().backward()
    found = [one.grad.clone() for one in parts]
    again = [one.detach().requires_grad_() for one in parts]
    seen = dense_mask(block_mask(PATTERNS[1], 40))
    sparse_attention(*again, seen, HEAD_DIM**-0.5).square().sum().backward()
    for one, other in zip(found, again, strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-4, atol=1e-5)


def test_the_estimate_counts_the_pairs_that_are_seen():
    estimate = make(SparsePattern.sliding_window(512)).get_memory_estimate(seq_len=4096)
    pairs = 4096 * 512 - 512 * 511 // 2
    assert estimate["full_attention_mb"] == 32
    assert estimate["sparse_attention_mb"] == pairs * 2 / 2**20
    assert estimate["reduction_factor"] == 4096**2 / pairs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q, k, v: (q[0], k, v), r"query is \[4, 90, 24\]"),
        (lambda q, k, v: (q, k[:, :1], v), r"key is \[2, 1, 90, 24\]"),
        (lambda q, k, v: (q, k, v[:, :, :8]), r"value is \[2, 2, 8, 24\]"),
        (lambda q, k, v: (q, k.half(), v), "key is torch.float16"),
        (lambda q, k, v: (q.long(), k.long(), v.long()), "query is torch.int64"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, words):
    with pytest.raises(UsageError, match=words):
        make(PATTERNS[0])(*change(*inputs()))


def test_heads_that_cannot_share_are_refused():
    with pytest.raises(UsageError, match="4 heads cannot share 3"):
        SparseAttentionConfig(num_heads=4, num_kv_heads=3, head_dim=8, pattern=PATTERNS[0])

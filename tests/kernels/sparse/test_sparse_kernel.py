"""The kernel equals the reference: in the interpreter, compiled, and on a GPU."""

from __future__ import annotations

import interpreted  # noqa: F401 - before triton: it chooses the interpreter
import pytest
import torch

from zse.kernels.sparse.reference import sparse_attention
from zse.kernels.sparse.triton.attend import Rules, attend
from zse.sparse import SparsePattern, block_mask, dense_mask

PATTERNS = (
    SparsePattern.longformer(20, 20, block_size=16),
    SparsePattern.bigbird(20, 16, block_size=16),
    SparsePattern.block_sparse(16, 3),
)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_blocks_are_attended_to_as_by_the_reference(pattern, is_causal):
    torch.manual_seed(1)
    length, head_dim = 70, 24
    query = torch.randn(1, 2, length, head_dim)
    key, value = torch.randn(2, 1, 1, length, head_dim)
    mask = block_mask(pattern, length, is_causal=is_causal)
    rules = Rules(pattern.window_size, pattern.num_global_start, is_causal, scale=0.2)
    blocks = (mask.row_starts, mask.masked_starts, mask.columns, mask.kinds)
    found = attend(query, key, value, blocks, pattern.block_size, rules)
    wanted = sparse_attention(query, key, value, dense_mask(mask), 0.2)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)

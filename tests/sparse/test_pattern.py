"""A pattern says which pairs are seen, and the mask in each form says the same."""

from __future__ import annotations

import pytest
import torch

from zse.errors import UsageError
from zse.sparse import SparsePattern, block_mask, coo_mask, dense_mask
from zse.sparse.layout import Seen
from zse.sparse.masks import count_pairs

SIZE = 16
PATTERNS = {
    "window": SparsePattern.sliding_window(20, block_size=SIZE),
    "window of one": SparsePattern.sliding_window(1, block_size=SIZE),
    "wide window": SparsePattern.sliding_window(300, block_size=SIZE),
    "longformer": SparsePattern.longformer(20, 3, block_size=SIZE),
    "many global": SparsePattern.longformer(8, 40, block_size=SIZE),
    "bigbird": SparsePattern.bigbird(20, 32, block_size=SIZE, seed=4),
    "strided": SparsePattern.block_sparse(SIZE, 3),
}
LENGTHS = (1, 16, 50, 112)


def said(pattern, length, is_causal):
    """Return the mask as the rules say it, pair by pair; what is drawn is not in it."""
    query, key = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    seen = (query - key).abs() < pattern.window_size
    seen |= (key < pattern.num_global_start) | (query < pattern.num_global_start) & (not is_causal)
    if pattern.block_stride:
        blocks = query // pattern.block_size - key // pattern.block_size
        seen |= blocks % pattern.block_stride == 0
    return seen & (key <= query) if is_causal else seen


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "bigbird"])
def test_the_dense_mask_is_what_the_rules_say(name, length, is_causal):
    pattern = PATTERNS[name]
    mask = block_mask(pattern, length, is_causal=is_causal)
    assert torch.equal(dense_mask(mask), said(pattern, length, is_causal))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_coordinates_and_counts_are_those_of_the_dense_mask(name, is_causal):
    mask = block_mask(PATTERNS[name], 100, is_causal=is_causal)
    dense = dense_mask(mask)
    assert torch.equal(coo_mask(mask).indices().T, dense.nonzero())
    assert count_pairs(mask) == int(dense.sum())
    assert dense.diagonal().all()


@pytest.mark.parametrize("is_causal", [True, False])
def test_bigbird_sees_besides_its_rules_as_many_whole_blocks_as_it_was_given(is_causal):
    pattern, length = PATTERNS["bigbird"], 160
    mask = block_mask(pattern, length, is_causal=is_causal)
    drawn = dense_mask(mask) & ~said(pattern, length, is_causal)
    blocks = drawn.unflatten(0, (-1, SIZE)).unflatten(2, (-1, SIZE)).transpose(1, 2)
    whole = blocks.flatten(2).all(-1)
    assert torch.equal(whole, blocks.flatten(2).any(-1))
    assert whole.sum(1)[6:].tolist() == [2] * 4


def test_what_is_drawn_depends_on_the_seed_and_not_on_what_follows():
    pattern = PATTERNS["bigbird"]
    short, long = (dense_mask(block_mask(pattern, length)) for length in (160, 320))
    assert torch.equal(long[:160, :160], short)
    other = SparsePattern.bigbird(20, 32, block_size=SIZE, seed=5)
    assert not torch.equal(dense_mask(block_mask(other, 160)), short)


def test_blocks_lie_in_compressed_rows_with_those_seen_whole_first():
    mask = block_mask(SparsePattern.longformer(20, 16, block_size=SIZE), 64)
    assert mask.row_starts.tolist() == [0, 1, 3, 6, 10]
    assert mask.row(3) == [(0, Seen.ALL), (1, Seen.RULED), (2, Seen.RULED), (3, Seen.ORDERED)]
    assert mask.masked_starts.tolist() == [0, 2, 4, 7]
    assert mask.density == 10 / 16


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SparsePattern.sliding_window(0), "does not see itself"),
        (lambda: SparsePattern.longformer(8, -1), "num_global_start is -1"),
        (lambda: SparsePattern.block_sparse(48), "block_size is 48"),
        (lambda: block_mask(SparsePattern.sliding_window(), 0), "a text of 0 tokens"),
    ],
)
def test_a_pattern_or_text_that_is_none_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()
